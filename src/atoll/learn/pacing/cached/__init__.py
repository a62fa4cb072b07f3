"""The rounds of SAFA: a cache with one model for every client, arrivals, lags and bias."""
