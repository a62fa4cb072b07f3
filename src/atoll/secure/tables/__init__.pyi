from .rearrangement import Rearrangement as Rearrangement
