//! Looks weights up in a directory, and adapters with them.

use bilayer_quant::Type;

use super::Recorder;
use crate::lora::LowRank;
use crate::{Entry, Error, Lora, Stack, Weight, WeightId};

impl Recorder<'_> {
    /// The matrix `name`, `[rows, cols]`.
    ///
    /// # Errors
    /// The tensor is missing, has another shape, or a type whose blocks do not fit its rows.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<WeightId, Error> {
        self.matrix_rows(name, rows, 0, rows, cols)
    }

    /// Rows `first_row..first_row + rows` of the matrix `name`, `[tensor_rows, cols]`.
    ///
    /// # Errors
    /// Those of [`Recorder::matrix`].
    pub fn matrix_rows(
        &mut self,
        name: &str,
        tensor_rows: usize,
        first_row: usize,
        rows: usize,
        cols: usize,
    ) -> Result<WeightId, Error> {
        assert!(first_row + rows <= tensor_rows, "{name}: rows outside the tensor");
        let expected = [tensor_rows as u64, cols as u64];
        let ty = self.check(name, &expected)?;
        let known = self.weights.len();
        let id = self.weight(Weight {
            id: WeightId(0),
            name: name.to_owned(),
            ty,
            rows,
            cols,
            first_row,
            stacked: 1,
            is_resident: false,
            layer: self.layer,
        });
        if id.0 as usize == known {
            self.note_factor(id)?;
            for lora in self.catalog.loras() {
                self.adapt(id, lora, tensor_rows)?;
            }
        }
        Ok(id)
    }

    /// Notes the factor of a matrix `x.weight` that the file has apart, as `x.scale` of one element: conversions of NVFP4
    /// checkpoints by llama.cpp do. A longer vector of that name is something else, such as the gain of a router's norm.
    fn note_factor(&mut self, id: WeightId) -> Result<(), Error> {
        let Some(stem) = self.weight_of(id).name.strip_suffix(".weight") else { return Ok(()) };
        let name = format!("{stem}.scale");
        let is_one = |entry: Entry| entry.shape.iter().all(|&length| length == 1);
        if self.catalog.find(&name).is_some_and(is_one) {
            let by = self.vector(&name, 1)?;
            self.factors.insert(id, by);
        }
        Ok(())
    }

    /// Adds an adapter's matrices for a matrix of a tensor of `tensor_rows`, if it has them.
    fn adapt(&mut self, id: WeightId, lora: &Lora, tensor_rows: usize) -> Result<(), Error> {
        let Weight { name, first_row, rows, cols, .. } = self.weight_of(id).clone();
        let [down, up] = lora.tensors(&name);
        let Some(entry) = self.catalog.find(&down) else { return Ok(()) };
        let rank = match *entry.shape {
            [.., rank, _] => rank as usize,
            _ => 1,
        };
        let down = self.matrix(&down, rank, cols)?;
        let up = self.matrix_rows(&up, tensor_rows, first_row, rows, rank)?;
        let factor = lora.factor(rank);
        self.low_ranks.entry(id).or_default().push(LowRank { down, up, factor });
        Ok(())
    }

    /// The matrices of `experts` experts, `[rows, cols]` each: the tensor `name`, `[experts, rows, cols]`; or, as
    /// written by early converters, separate tensors named `each(expert)`.
    ///
    /// # Errors
    /// Those of [`Recorder::matrix`]; experts of different types.
    pub fn stack(
        &mut self,
        name: &str,
        each: impl Fn(usize) -> String,
        [experts, rows, cols]: [usize; 3],
    ) -> Result<Stack, Error> {
        if self.has(&each(0)) {
            let stack: Result<Stack, Error> =
                (0..experts).map(|expert| self.matrix(&each(expert), rows, cols)).collect();
            let stack = stack?;
            let ty = self.weight_of(stack[0]).ty;
            return match stack.iter().map(|&id| self.weight_of(id)).find(|other| other.ty != ty) {
                None => Ok(stack),
                Some(other) => {
                    let (name, found) = (other.name.clone(), other.ty);
                    Err(Error::StackType { name, expected: ty, found })
                }
            };
        }
        let ty = self.check(name, &[experts, rows, cols].map(|size| size as u64))?;
        let weight = self.weight(Weight {
            id: WeightId(0),
            name: name.to_owned(),
            ty,
            rows: experts * rows,
            cols,
            first_row: 0,
            stacked: experts,
            is_resident: false,
            layer: self.layer,
        });
        Ok(Stack::from([weight]))
    }

    /// The vector `name` of `len` elements: a norm's gain, a bias. It must be stored as F32, F16 or BF16.
    ///
    /// # Errors
    /// The tensor is missing, has another shape or is block-quantized.
    pub fn vector(&mut self, name: &str, len: usize) -> Result<WeightId, Error> {
        self.vector_part(name, len, 0, len)
    }

    /// Elements `first..first + len` of the vector `name`, which has `tensor_len`: the bias of one of several fused
    /// matrices.
    ///
    /// # Errors
    /// Those of [`Recorder::vector`]; `first` is not a multiple of `len`, which it always is with grouped-query attention.
    pub fn vector_part(
        &mut self,
        name: &str,
        tensor_len: usize,
        first: usize,
        len: usize,
    ) -> Result<WeightId, Error> {
        assert!(first + len <= tensor_len, "{name}: elements outside the tensor");
        if !first.is_multiple_of(len) {
            return Err(Error::VectorPart { name: name.to_owned(), first, end: first + len });
        }
        self.vectors_of(name, &[tensor_len as u64], first / len, [1, len])
    }

    /// `count` vectors of `len` elements from vector `first` on of the tensor `name` of that shape.
    fn vectors_of(
        &mut self,
        name: &str,
        shape: &[u64],
        first: usize,
        [count, len]: [usize; 2],
    ) -> Result<WeightId, Error> {
        let ty = self.check(name, shape)?;
        if ty.block_weights != 1 {
            return Err(Error::VectorType { name: name.to_owned(), found: ty });
        }
        Ok(self.weight(Weight {
            id: WeightId(0),
            name: name.to_owned(),
            ty,
            rows: count,
            cols: len,
            first_row: first,
            stacked: count,
            is_resident: false,
            layer: self.layer,
        }))
    }

    /// The vectors of `experts` experts, `len` elements each: the tensor `name`, `[experts, len]`.
    ///
    /// # Errors
    /// Those of [`Recorder::vector`].
    pub fn expert_vectors(
        &mut self,
        name: &str,
        [experts, len]: [usize; 2],
    ) -> Result<WeightId, Error> {
        self.vectors_of(name, &[experts as u64, len as u64], 0, [experts, len])
    }

    /// The factors of `experts` experts, one each: the tensor `name`, `[experts]`.
    ///
    /// # Errors
    /// Those of [`Recorder::vector`].
    pub fn expert_factors(&mut self, name: &str, experts: usize) -> Result<WeightId, Error> {
        self.vectors_of(name, &[experts as u64], 0, [experts, 1])
    }

    /// The tensor `name`, `[count, len]`, as one vector: the weights of each channel, the biases of each bucket of distances.
    ///
    /// # Errors
    /// Those of [`Recorder::vector`].
    pub fn stack_vector(
        &mut self,
        name: &str,
        [count, len]: [usize; 2],
    ) -> Result<WeightId, Error> {
        self.vectors_of(name, &[count as u64, len as u64], 0, [1, count * len])
    }

    /// The vector `name`, if the file contains it.
    ///
    /// # Errors
    /// Those of [`Recorder::vector`], except for a missing tensor.
    pub fn optional_vector(&mut self, name: &str, len: usize) -> Result<Option<WeightId>, Error> {
        if self.has(name) { self.vector(name, len).map(Some) } else { Ok(None) }
    }

    /// A weight requested twice (a tied head) is stored once.
    fn weight(&mut self, weight: Weight) -> WeightId {
        let part = |w: &Weight| (w.first_row, w.rows, w.cols);
        let known = self.of_tensor.get(&weight.name).into_iter().flatten();
        let mut known = known.filter(|&&id| part(self.weight_of(id)) == part(&weight));
        if let Some(&id) = known.next() {
            return id;
        }
        let id = WeightId(self.weights.len() as u32);
        self.of_tensor.entry(weight.name.clone()).or_default().push(id);
        self.weights.push(Weight { id, ..weight });
        id
    }

    /// The type of tensor `name`, after checking that its shape is `expected` (ignoring leading ones).
    fn check(&self, name: &str, expected: &[u64]) -> Result<Type, Error> {
        let entry = self
            .catalog
            .find_as(name, expected)
            .ok_or_else(|| Error::MissingTensor { name: name.to_owned() })?;
        let significant = |shape: &[u64]| -> Vec<u64> {
            let ones = shape.iter().take_while(|&&d| d == 1).count();
            shape[ones.min(shape.len().saturating_sub(1))..].to_vec()
        };
        if significant(&entry.shape) != significant(expected) {
            return Err(Error::TensorShape {
                name: name.to_owned(),
                expected: expected.to_vec(),
                found: entry.shape,
            });
        }
        let cols = expected[expected.len() - 1];
        if !cols.is_multiple_of(entry.ty.block_weights as u64) {
            return Err(Error::TensorBlock { name: name.to_owned(), ty: entry.ty, cols });
        }
        Ok(entry.ty)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use std::time::{Duration, Instant};

    use super::*;
    use crate::{Catalog, Op};

    /// A directory with a matrix of every name.
    struct Squares;

    impl Catalog for Squares {
        fn find(&self, _: &str) -> Option<Entry> {
            Some(Entry { ty: Type::F32, shape: vec![4, 4] })
        }
    }

    /// A directory with a vector of every name.
    struct Vectors;

    impl Catalog for Vectors {
        fn find(&self, _: &str) -> Option<Entry> {
            Some(Entry { ty: Type::F32, shape: vec![12] })
        }
    }

    #[test]
    fn a_part_of_a_tensor_is_one_weight_however_often_it_is_asked_for() {
        let mut recorder = Recorder::new(&Squares);
        let whole = recorder.matrix("a", 4, 4).unwrap();
        let lower = recorder.matrix_rows("a", 4, 2, 2, 4).unwrap();
        let other = recorder.matrix("b", 4, 4).unwrap();
        assert_eq!([whole, lower, other].map(|id| id.0), [0, 1, 2]);
        assert_eq!(recorder.matrix("a", 4, 4).unwrap(), whole);
        assert_eq!(recorder.matrix_rows("a", 4, 2, 2, 4).unwrap(), lower);
        assert_eq!(recorder.matrix_rows("b", 4, 0, 2, 4).unwrap().0, 3);
        assert_eq!(recorder.weight_of(lower).first_row, 2);
    }

    /// Two matrices, one with a factor, and one with a vector of its factor's name, and an adapter of all.
    struct Factored(Vec<Lora>);

    impl Catalog for Factored {
        fn find(&self, name: &str) -> Option<Entry> {
            let shape = match name {
                "a.weight" | "b.weight" => vec![4, 4],
                "a.bias" | "b.scale" => vec![4],
                "a.scale" => vec![1],
                "a.weight.lora_a" => vec![2, 4],
                "a.weight.lora_b" => vec![4, 2],
                _ => return None,
            };
            Some(Entry { ty: Type::F32, shape })
        }

        fn loras(&self) -> &[Lora] {
            &self.0
        }
    }

    #[test]
    fn the_factor_of_a_matrix_is_on_neither_its_bias_nor_its_adapters() {
        let adapted = Factored(vec![Lora { prefix: String::new(), scale: 1.0, alpha: None }]);
        let mut recorder = Recorder::new(&adapted);
        let [a, b] = ["a.weight", "b.weight"].map(|name| recorder.matrix(name, 4, 4).unwrap());
        let bias = recorder.vector("a.bias", 4).unwrap();
        let input = recorder.given(4);
        let sum = recorder.matmul("a", input, a, Some(bias));
        recorder.matmul("b", sum, b, None);
        let scaled = recorder.nodes.iter().filter_map(|node| match node.op {
            Op::Scale { input, by: Some(by), out, .. } => Some((input, by, out)),
            _ => None,
        });
        let [(read, by, out)] = scaled.collect::<Vec<_>>()[..] else { panic!("one factor") };
        assert_eq!((read, recorder.weight_of(by).name.as_str()), (input, "a.scale"));
        let products = recorder.nodes.iter().filter_map(|node| match node.op {
            Op::MatMul { input, weight, bias, .. } => Some((input, weight, bias)),
            _ => None,
        });
        let products: Vec<_> = products.collect();
        assert_eq!(products[0], (out, a, Some(bias)));
        assert_eq!(products[1].0, input, "the adapter");
        assert_eq!((products[3].0, products[3].1), (sum, b));
    }

    #[test]
    fn parts_of_a_vector_begin_at_multiples_of_their_length() {
        let mut recorder = Recorder::new(&Vectors);
        let part = recorder.vector_part("a", 12, 8, 4).unwrap();
        assert_eq!(recorder.weight_of(part).first_row, 2);
        let error = recorder.vector_part("a", 12, 4, 8).unwrap_err();
        assert_eq!(error, Error::VectorPart { name: "a".to_owned(), first: 4, end: 12 });
    }

    #[test]
    fn the_time_of_a_weight_does_not_grow_with_their_number() {
        let began = Instant::now();
        let each = |expert| format!("blk.0.ffn_up.{expert}.weight");
        // With a search through all weights it would take half a minute.
        let experts = Recorder::new(&Squares).stack("", each, [60_000, 4, 4]).unwrap();
        assert_eq!(experts.len(), 60_000);
        assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    }
}
