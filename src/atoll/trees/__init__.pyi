from .job import Trees as Trees
from .model_files import model_file as model_file
from .tree import Ensemble as Ensemble
from .tree import Tree as Tree
