"""Upcycled-FL's experiments: the protocol that its tables share.

Source: Yin, Zhang, Zhang and Liu, "Federated Learning with Reduced Information Leakage and Computation". Logistic
regression on the synthetic populations (30 clients, 20 features, 2 classes; a tenth of each client held out), 30 % of
the clients per round, 90 % or 30 % stragglers, ten local epochs with batches of 32 and local momentum 0.5; ``T``
iterations of a base against ``2 T`` of its Upcycled version, which contacts the same number of clients equally often.

Our choices: one rule, fixed beforehand, picks learning rates for a base and its Upcycled version alike: five rates, two
seeds, the table's own number of rounds, accuracy on rows that are neither trained on nor tested (a tenth of each
client's training rows), 90 % stragglers. ``u`` is the default of the authors' code, 0.3, and is not tuned. Each table
also has Upcycled at the rate picked for its base, and the base with server learning rate ``1 + u`` at ``T`` rounds,
which is the same method in theory. pFedMe (no local momentum) is measured with personal models on each client's own
test rows. Real data has a smaller protocol, see `atoll_papers.upcycled.entries`. The synthetic data is drawn from
our seed: accuracies change by many points with the draw, differences between methods do not.
"""
