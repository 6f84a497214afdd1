//! From a graph, a machine and a budget to a plan; pure.
