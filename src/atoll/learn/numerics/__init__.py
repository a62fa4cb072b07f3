"""Linear algebra over trees: curvature, mirrors, short forms of matrices."""
