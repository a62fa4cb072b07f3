"""HybridFL's experiments: three-layer federated learning with devices that drop out.

Source: W. Wu, "Efficient Horizontal Federated Learning" (PhD thesis, 2021), chapter 4. Two tasks (Table 4.2), three
drop-out rates and three participation shares; FedAvg and HierFAVG next to HybridFL (Tables 4.3 and 4.4, Figures 4.4 and
4.9).
"""
