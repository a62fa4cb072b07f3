"""FedProf's experiments: choosing clients by how the model represents their data when many have bad data.

Source: W. Wu, "Efficient Horizontal Federated Learning" (PhD thesis, 2021), chapter 5. Two tasks (Table 5.2); FedAvg,
CFCFM, FedAvg-RP, FedProx, FedAdam and AFL next to FedProf (Tables 5.3 and 5.4, Figures 5.11 and 5.12).
"""
