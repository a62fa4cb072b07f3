"""SAFA, semi-asynchronous federated averaging over unreliable clients, beside FedAvg, FedCS and training without aggregation.

Source: W. Wu, "Towards Efficient Horizontal Federated Learning", PhD thesis, University of Warwick, 2021, chapter 3 and appendix A (the chapter is also
IEEE Transactions on Computers 70(5):655-668, 2021). Line numbers beside printed figures are those of a plain-text copy of the thesis. Where the thesis is
silent or contradicts itself we take the rule of its author's public program (github.com/wingter562/SAFA) and say so; no code of it is used.

Three tasks (Boston housing, MNIST, KDD Cup 1999), four algorithms, four probabilities of crash and five fractions: 240 runs. Two kinds of result are
judged apart:

* **What rounds cost** (lengths, distribution time, synchronisation ratio, futility) depends on who crashes when and on nothing that is learnt. `reference`
  simulates it alone, short and slow, and is the oracle of the pacing that trains; `grid` has all 240 runs of it in seconds.
* **What is learnt** (the accuracies of appendix A) needs the trainings, which `cells` describes one by one.

`paper` holds every printed cell and `judge` the rules by which ours are held against them.
"""
