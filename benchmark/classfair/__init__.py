"""The engine of classfair: a matrix of cells, each trained in a process of its own."""
