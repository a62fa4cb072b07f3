"""FedAQ's experiments: the protocol of its table.

Source: Youn, Kumar, Abernethy, "Accelerated Federated Optimization with Quantization", IEEE Data Engineering Bulletin 45(4), 2022.

As the paper states it: 16, 18 and 8 clients, all in every round, with alike data; ``eta`` 0.002, 0.1 and 0.01 for every method; ``mu`` 0.1, 0.01 and 0.2;
20, 100 and 100 local steps; 8 bits, and 4 for FedAQ on the networks. As its authors' code has it, where the paper is silent: batches of 50, the
mean and deviation of each data set, ``1e-4`` of weight decay and a model of zeros in the convex task, the affine quantiser by least and largest entry
on both ways, and accuracy of the main stream ``w``.

What is ours: no decay of the learning rate; the way down is a difference to what clients hold, with the server keeping the error; rounds are those
of the first evaluation that meets the target, on the whole test set after every round. The convex task has three seeds, the MLP two, the CNN one. CIFAR-10 is a
part of 10,000 images averaged to 16 x 16 pixels, with a CNN of 9,810 parameters instead of 672,212 and 15 rounds instead of 100: its target is what FedAvg has
at the end. Nothing was tuned. Human time takes the paper's model sizes and the computing time that its own figures imply, at our rounds. Bits
are counted as the paper does; the meter stands beside them, which sees headers, and in the convex task numbers of 64 bits where nothing is quantised.

Two controls that the paper lacks: FedAvg and FedPAQ with the learning rate ``gamma``, which is the step of the accelerated methods' main stream. And two variants of
FedAQ-I: unbiased quantisation of the way up alone, as its Algorithm 7 has it, and accuracy of the stream that the theory speaks of, ``w_ag``.
"""
