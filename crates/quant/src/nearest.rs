//! The point of a codebook nearest to a group of weights, exactly, under the costs of their errors.
//!
//! The cost of a point is a sum over its coordinates, and each coordinate has few levels. So the costs of all first
//! halves and of all second halves are tabulated (81 or 64 sums each), and a point costs two look-ups and an
//! addition. Costs are relative to the best level of each coordinate, hence never negative: a first half that alone
//! costs more than the best point so far rules out all its points. In formats with an even number of negatives, a
//! second table holds the cost with one sign flipped, so point and flipped sign are chosen together.

use crate::grids::{even_signs, signed};

/// How a type stores signs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Signs {
    /// One bit per weight.
    Free,
    /// Seven bits per eight weights, the number of negatives being even.
    Even,
    /// Levels are signed, and a shift is added to or subtracted from the weights of a sub-block.
    ShiftOfPart(f32),
    /// As above, for every eight weights.
    ShiftOfUnit(f32),
}

/// The code of eight weights: one point of eight coordinates or two of four.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unit {
    pub points: [u16; 2],
    /// Bit i: weight i is negative. Of shifted types, 1: the shift is negative.
    pub signs: u8,
}

impl Unit {
    /// The seven bits that [`even_signs`] completes.
    pub fn seven_signs(self) -> u8 {
        debug_assert_eq!(even_signs(self.signs & 127), self.signs);
        self.signs & 127
    }
}

/// A codebook of points of `W` coordinates of `L` levels (8 of 3 or 4 of 8), prepared for searching.
pub(crate) struct Codebook<const W: usize, const L: usize> {
    points: &'static [[i8; W]],
    signs: Signs,
    /// Rising.
    levels: [f32; L],
    /// First halves that occur, with the range of their points in the two lists below.
    firsts: Vec<(u8, u16, u16)>,
    /// By first half: its range, empty if it does not occur.
    ranges: [(u16, u16); 256],
    /// The second half of each point, sorted by first half.
    seconds: Vec<u8>,
    /// The number of each point, in the same order.
    numbers: Vec<u16>,
}

/// The sums over two tables of costs: as they are, and with the cheapest flip of one sign.
struct Half {
    plain: [f32; 256],
    odd: [f32; 256],
}

/// Weights, the cost of a squared error at each, and the scale of their codes.
#[derive(Clone, Copy)]
pub(crate) struct Weights<'a, const N: usize> {
    pub x: &'a [f32; N],
    pub w: &'a [f32; N],
    pub scale: f32,
}

/// Magnitudes, and a bit for each negative weight.
#[inline(always)]
fn split(x: &[f32; 8]) -> ([f32; 8], u8) {
    let (mut magnitudes, mut signs) = (*x, 0);
    for (i, x) in magnitudes.iter_mut().enumerate() {
        signs |= u8::from(*x < 0.0) << i;
        *x = x.abs();
    }
    (magnitudes, signs)
}

/// Buffers of a search.
pub(crate) struct Scratch {
    first: Half,
    second: Half,
}

impl Scratch {
    pub fn new() -> Scratch {
        let half = || Half { plain: [0.0; 256], odd: [0.0; 256] };
        Scratch { first: half(), second: half() }
    }
}

/// A point, its cost and the flipped coordinate if there is one.
#[derive(Clone, Copy)]
struct Nearest {
    cost: f32,
    point: u16,
    flipped: Option<usize>,
}

impl<const W: usize, const L: usize> Codebook<W, L> {
    pub fn new(points: &'static [[i8; W]], signs: Signs) -> Codebook<W, L> {
        let mut levels: Vec<i8> = points.as_flattened().to_vec();
        levels.sort_unstable();
        levels.dedup();
        assert!(levels.len() == L && (W, L) == (8, 3) || (W, L) == (4, 8));
        let code = |half: &[i8]| {
            let at = |value: &i8| levels.iter().position(|level| level == value).unwrap_or(0);
            match *half {
                [ref a, ref b] => at(a) * 8 + at(b),
                [ref a, ref b, ref c, ref d] => (at(a) * 3 + at(b)) * 16 + at(c) * 3 + at(d),
                _ => unreachable!("halves have two or four coordinates"),
            }
        };
        let halves = |point: &[i8; W]| {
            let (first, second) = point.split_at(W / 2);
            (code(first) as u8, code(second) as u8)
        };
        let mut sorted: Vec<(u8, u8, u16)> = points
            .iter()
            .enumerate()
            .map(|(number, point)| {
                let (first, second) = halves(point);
                (first, second, number as u16)
            })
            .collect();
        sorted.sort_unstable();
        let (mut ranges, mut firsts) = ([(0, 0); 256], Vec::new());
        for run in sorted.chunk_by(|a, b| a.0 == b.0) {
            let begin = firsts.last().map_or(0, |(_, _, end)| *end);
            let end = begin + run.len() as u16;
            firsts.push((run[0].0, begin, end));
            ranges[usize::from(run[0].0)] = (begin, end);
        }
        Codebook {
            points,
            signs,
            levels: std::array::from_fn(|l| f32::from(levels[l])),
            firsts,
            ranges,
            seconds: sorted.iter().map(|(_, second, _)| *second).collect(),
            numbers: sorted.iter().map(|(_, _, number)| *number).collect(),
        }
    }

    /// Number of shifts that a sub-block chooses from.
    pub fn shifts(&self) -> u8 {
        if matches!(self.signs, Signs::ShiftOfPart(_)) { 2 } else { 1 }
    }

    /// The codes that minimize `Σ w (x - scale · value)²`, and that sum; `shift` 1 is the negative one where a
    /// sub-block has a shift.
    #[inline(always)]
    pub fn nearest(
        &self,
        scratch: &mut Scratch,
        weights: Weights<'_, 8>,
        shift: u8,
    ) -> (f32, Unit) {
        match self.signs {
            Signs::Free => self.nearest_signed(scratch, weights),
            Signs::Even => self.nearest_even(scratch, weights),
            Signs::ShiftOfPart(by) => self.nearest_shifted(scratch, weights, (by, shift)),
            Signs::ShiftOfUnit(by) => {
                let plus = self.nearest_shifted(scratch, weights, (by, 0));
                let minus = self.nearest_shifted(scratch, weights, (by, 1));
                if minus.0 < plus.0 { minus } else { plus }
            }
        }
    }

    /// The values of a code at scale 1.
    #[inline(always)]
    pub fn values(&self, unit: Unit) -> [f32; 8] {
        let mut values = [0.0; 8];
        for (k, values) in values.chunks_exact_mut(W).enumerate() {
            for (value, level) in values.iter_mut().zip(self.points[usize::from(unit.points[k])]) {
                *value = f32::from(level);
            }
        }
        match self.signs {
            Signs::Free | Signs::Even => {
                for (i, value) in values.iter_mut().enumerate() {
                    *value = signed(*value, unit.signs, i);
                }
            }
            Signs::ShiftOfPart(by) | Signs::ShiftOfUnit(by) => {
                let by = if unit.signs == 0 { by } else { -by };
                for value in &mut values {
                    *value += by;
                }
            }
        }
        values
    }

    #[inline(always)]
    fn nearest_shifted(
        &self,
        scratch: &mut Scratch,
        Weights { x, w, scale }: Weights<'_, 8>,
        (by, shift): (f32, u8),
    ) -> (f32, Unit) {
        let by = if shift == 0 { by } else { -by };
        let mut moved = *x;
        for x in &mut moved {
            *x -= scale * by;
        }
        self.nearest_plain(scratch, Weights { x: &moved, w, scale }, shift)
    }

    /// Every sign is that of its weight.
    #[inline(always)]
    fn nearest_signed(
        &self,
        scratch: &mut Scratch,
        Weights { x, w, scale }: Weights<'_, 8>,
    ) -> (f32, Unit) {
        let (magnitudes, signs) = split(x);
        self.nearest_plain(scratch, Weights { x: &magnitudes, w, scale }, signs)
    }

    /// Levels as they are, `signs` decided.
    #[inline(always)]
    fn nearest_plain(
        &self,
        scratch: &mut Scratch,
        Weights { x, w, scale }: Weights<'_, 8>,
        signs: u8,
    ) -> (f32, Unit) {
        let (mut cost, mut unit) = (0.0, Unit { signs, ..Unit::default() });
        for (k, (x, w)) in x.as_chunks::<W>().0.iter().zip(w.as_chunks::<W>().0).enumerate() {
            let found = self.search(scratch, Weights { x, w, scale });
            cost += found.cost;
            unit.points[k] = found.point;
        }
        (cost, unit)
    }

    /// Every sign is that of its weight, but for one if the number of negatives is odd.
    #[inline(always)]
    fn nearest_even(&self, scratch: &mut Scratch, weights: Weights<'_, 8>) -> (f32, Unit) {
        let (magnitudes, mut signs) = split(weights.x);
        let Weights { w, scale, .. } = weights;
        if signs.count_ones() % 2 == 0 {
            return self.nearest_plain(scratch, Weights { x: &magnitudes, w, scale }, signs);
        }
        let none = Nearest { cost: 0.0, point: 0, flipped: None };
        let mut found = [[none; 2]; 2];
        let (magnitudes, w) = (magnitudes.as_chunks::<W>().0, w.as_chunks::<W>().0);
        for k in 0..8 / W {
            found[k] = self.search_flipped(scratch, Weights { x: &magnitudes[k], w: &w[k], scale });
        }
        let [first, second] = found;
        let is_in_second =
            W == 4 && first[0].cost + second[1].cost < first[1].cost + second[0].cost;
        let chosen = if is_in_second { [first[0], second[1]] } else { [first[1], second[0]] };
        for (k, chosen) in chosen.iter().enumerate() {
            if let Some(i) = chosen.flipped {
                signs ^= 1 << (k * W + i);
            }
        }
        (chosen[0].cost + chosen[1].cost, Unit { points: chosen.map(|chosen| chosen.point), signs })
    }

    /// The nearest point.
    #[inline(always)]
    fn search(&self, scratch: &mut Scratch, weights: Weights<'_, W>) -> Nearest {
        let (least, closest) = self.tabulate::<false>(scratch, weights);
        let Scratch { first, second } = scratch;
        let bound = |code: usize| first.plain[code];
        let (cost, point) =
            self.scan(closest, bound, |code, half| first.plain[code] + second.plain[half]);
        Nearest { cost: cost + least, point, flipped: None }
    }

    /// The nearest point, and the nearest one with the sign of one coordinate flipped.
    #[inline(always)]
    fn search_flipped(&self, scratch: &mut Scratch, weights: Weights<'_, W>) -> [Nearest; 2] {
        let (least, closest) = self.tabulate::<true>(scratch, weights);
        let Scratch { first, second } = scratch;
        let bound = |code: usize| first.plain[code];
        let plain = |code: usize, half: usize| first.plain[code] + second.plain[half];
        // A point of eight coordinates always has the flipped one.
        let (plain, plain_point) = if W == 8 { (0.0, 0) } else { self.scan(closest, bound, plain) };
        let (odd, odd_point) = self.scan(closest, bound, |code, half| {
            let a = first.plain[code] + second.odd[half];
            let b = first.odd[code] + second.plain[half];
            if a < b { a } else { b }
        });
        let point = &self.points[usize::from(odd_point)];
        // Flipping the sign of a coordinate at level g adds 4 w |x| scale g.
        let (mut flipped, mut added) = (0, f32::INFINITY);
        for (i, level) in point.iter().enumerate() {
            let more = weights.w[i] * weights.x[i] * f32::from(*level);
            (flipped, added) = if more < added { (i, more) } else { (flipped, added) };
        }
        [
            Nearest { cost: plain + least, point: plain_point, flipped: None },
            Nearest { cost: odd + least, point: odd_point, flipped: Some(flipped) },
        ]
    }

    /// The least cost of a point and its number: first among the points that begin with the half `closest`.
    #[inline(always)]
    fn scan(
        &self,
        closest: u8,
        bound: impl Fn(usize) -> f32,
        cost: impl Fn(usize, usize) -> f32,
    ) -> (f32, u16) {
        let (mut least, mut at) = (f32::INFINITY, 0);
        let mut among = |least: &mut f32, code: u8, begin: u16, end: u16| {
            let range = usize::from(begin)..usize::from(end);
            for (i, half) in self.seconds[range].iter().enumerate() {
                let cost = cost(usize::from(code), usize::from(*half));
                if cost < *least {
                    *least = cost;
                    at = usize::from(begin) + i;
                }
            }
        };
        let (begin, end) = self.ranges[usize::from(closest)];
        among(&mut least, closest, begin, end);
        if least == 0.0 {
            return (least, self.numbers[at]);
        }
        for &(code, begin, end) in &self.firsts {
            if bound(usize::from(code)) < least {
                among(&mut least, code, begin, end);
            }
        }
        (least, self.numbers[at])
    }

    /// Fills both halves; returns the cost of the best level of every coordinate, and the first half of those levels.
    #[inline(always)]
    fn tabulate<const ODD: bool>(
        &self,
        scratch: &mut Scratch,
        Weights { x, w, scale }: Weights<'_, W>,
    ) -> (f32, u8) {
        let mut plain = [[0.0; L]; W];
        let mut odd = [[0.0; L]; W];
        let (mut total, mut closest) = (0.0, [0; W]);
        for i in 0..W {
            let (plain, odd) = (&mut plain[i], &mut odd[i]);
            let mut least = f32::INFINITY;
            for (l, (cost, level)) in plain.iter_mut().zip(&self.levels).enumerate() {
                let near = x[i] - scale * level;
                *cost = w[i] * near * near;
                let is_less = *cost < least;
                least = if is_less { *cost } else { least };
                closest[i] = if is_less { l } else { closest[i] };
            }
            for cost in plain {
                *cost -= least;
            }
            if ODD {
                for (cost, level) in odd.iter_mut().zip(&self.levels) {
                    let far = x[i] + scale * level;
                    *cost = w[i] * far * far - least;
                }
            }
            total += least;
        }
        let Scratch { first, second } = scratch;
        let code = if W == 8 {
            for (half, at) in [(first, 0), (second, 4)] {
                let a = pair::<L, ODD>(&plain, &odd, at);
                let b = pair::<L, ODD>(&plain, &odd, at + 2);
                outer::<9, 16, ODD>([&a[0], &a[1]], [&b[0], &b[1]], half);
            }
            (closest[0] * 3 + closest[1]) * 16 + closest[2] * 3 + closest[3]
        } else {
            for (half, at) in [(first, 0), (second, 2)] {
                let [a, b] = [at, at + 1].map(|i| [&plain[i][..], &odd[i][..]]);
                outer::<8, 8, ODD>(a, b, half);
            }
            closest[0] * 8 + closest[1]
        };
        (total, code as u8)
    }
}

/// The nine pairs of the coordinates `at` and `at + 1`, of three levels each; entries beyond them are infinite.
#[inline(always)]
fn pair<const L: usize, const ODD: bool>(
    plain: &[[f32; L]],
    odd: &[[f32; L]],
    at: usize,
) -> [[f32; 16]; 2] {
    let mut pairs = [[f32::INFINITY; 16]; 2];
    let (a, b) = (at, at + 1);
    for i in 0..3 {
        for j in 0..3 {
            pairs[0][3 * i + j] = plain[a][i] + plain[b][j];
            if ODD {
                let (left, right) = (odd[a][i] + plain[b][j], plain[a][i] + odd[b][j]);
                pairs[1][3 * i + j] = if left < right { left } else { right };
            }
        }
    }
    pairs
}

/// All sums of the first `I` entries of `a` and `J` of `b`, each of which are costs as they are and with a flip.
#[inline(always)]
fn outer<const I: usize, const J: usize, const ODD: bool>(
    a: [&[f32]; 2],
    b: [&[f32]; 2],
    half: &mut Half,
) {
    let [a, a_odd] = a.map(|costs| &costs[..I]);
    let [b, b_odd] = b.map(|costs| &costs[..J]);
    for i in 0..I {
        let sums = &mut half.plain[i * J..(i + 1) * J];
        for j in 0..J {
            sums[j] = a[i] + b[j];
        }
        if ODD {
            let sums = &mut half.odd[i * J..(i + 1) * J];
            for j in 0..J {
                let (left, right) = (a_odd[i] + b[j], a[i] + b_odd[j]);
                sums[j] = if left < right { left } else { right };
            }
        }
    }
}

#[cfg(test)]
mod tests;
