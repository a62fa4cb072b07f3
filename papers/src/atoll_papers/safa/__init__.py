"""SAFA, semi-asynchronous federated averaging over unreliable clients, against FedAvg, FedCS and training without aggregation.

Source: W. Wu, "Towards Efficient Horizontal Federated Learning", PhD thesis, University of Warwick, 2021, chapter 3 and
appendix A (the chapter is also IEEE Transactions on Computers 70(5):655-668, 2021). Line numbers next to printed
figures are those of a plain-text copy of the thesis. Where the thesis is silent or contradicts itself we take the rule
of its author's public program (github.com/wingter562/SAFA) and say so; no code of it is used.

Three tasks (Boston housing, MNIST, KDD Cup 1999), four algorithms, four probabilities of crash and five fractions: 240
runs. Two kinds of result are judged separately:

* **What rounds cost** (lengths, distribution time, synchronisation ratio, futility) depends on which clients crash
  when, and not on the training. `reference` simulates only this, short and slow, and is the oracle of the pacing that
  trains; `grid` simulates all 240 runs in seconds.
* **What is learnt** (the accuracies of appendix A) needs trainings, which `scores` describes one by one.

`paper` has every printed cell, and `grid` the rules that compare ours with them.
"""
