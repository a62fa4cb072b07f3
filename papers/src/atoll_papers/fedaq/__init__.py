"""FedAQ's experiments: the protocol of its table.

Source: Youn, Kumar, Abernethy, "Accelerated Federated Optimization with Quantization", IEEE Data Engineering Bulletin
45(4), 2022.

As in the paper: 16, 18 and 8 clients, all in every round, with similar data; ``eta`` 0.002, 0.1 and 0.01 for every
method; ``mu`` 0.1, 0.01 and 0.2; 20, 100 and 100 local steps; 8 bits, and 4 for FedAQ on the networks. As in its
authors' code, where the paper is silent: batches of 50, the mean and deviation of each data set, ``1e-4`` of weight
decay and a model of zeros in the convex task, the affine quantiser by least and largest entry in both directions, and
accuracy of the main stream ``w``.

Our choices: no decay of the learning rate; the downlink sends a difference to the clients' model, and the server keeps
the error; rounds are those of the first evaluation that meets the target, on the whole test set after every round. The
convex task and the CNN have three seeds, the MLP two. CIFAR-10 is a part of 10,000 images, not flipped or cropped, with
half of the paper's CNN: half of its channels and a quarter of its hidden units, 71,198 parameters instead of 672,212.
FedAvg has 20 rounds instead of 100. The target is the best accuracy that it reaches in them with every seed, on 2,000
other images; every other method may take 24 rounds to it. This size is what half an hour of a core allows: a round
takes it four to eight seconds, and the paper's CNN fourteen to twenty. Nothing was tuned. Human time takes the paper's
model sizes and the computing time that its own figures imply, at our rounds. Bits are counted as in the paper; the
meter's count, shown next to them, includes headers and in the convex task numbers of 64 bits where nothing is
quantised.

Two controls that the paper lacks: FedAvg and FedPAQ with the learning rate ``gamma``, which is the step of the
accelerated methods' main stream. And two variants of FedAQ-I: unbiased quantisation of the uplink alone, as in its
Algorithm 7, and accuracy of the stream of the theory, ``w_ag``.
"""
