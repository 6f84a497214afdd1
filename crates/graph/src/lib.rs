//! The vocabulary of a transformer: ops, values, weights, recorder, backends, reference executor.
