"""Linear algebra over trees: curvature, mirror maps, short forms of matrices."""
