//! The naive executor: f32 throughout, one loop nest per op, the oracle of every other backend.
