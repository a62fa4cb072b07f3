"""Layers of images in native code, as graph passes on traced programs: convolutions, group normalisation with what follows it, maximum pooling."""
