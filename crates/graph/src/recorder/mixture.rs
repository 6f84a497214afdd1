//! Records mixtures of experts: routes, products by route, sums.

use super::Recorder;
use crate::{Experts, Groups, Op, Route, Rows, Value, Weight};

impl Recorder<'_> {
    /// The router; `route.out` is overwritten here.
    pub fn route(&mut self, name: &'static str, mut route: Route) -> Value {
        let experts = self.width(route.logits);
        assert!((1..=experts).contains(&route.used), "{name}: {} of {experts}", route.used);
        assert!(experts <= 1 << f32::MANTISSA_DIGITS, "{name}: numbers are exact in f32");
        if let Some(Groups { count, used, best }) = route.groups {
            let whole = (1..=Groups::MAX).contains(&count) && experts.is_multiple_of(count);
            assert!(whole && (1..=2).contains(&best), "{name}: {count} groups of {experts}");
            let enough = (1..=count).contains(&used) && used * (experts / count) >= route.used;
            assert!(enough, "{name}: {used} of {count} groups for {} experts", route.used);
        }
        for of_experts in [route.bias, route.factors].into_iter().flatten() {
            assert_eq!(self.weight_of(of_experts).cols, experts, "{name}");
        }
        route.out = self.value(2 * route.used, self.rows(route.logits));
        self.push(name, Op::Route(route))
    }

    /// The route of each token to all of so many experts, in order: `[T, 2 experts]`.
    pub fn route_all(&mut self, name: &'static str, experts: usize) -> Value {
        assert!((1..=1 << f32::MANTISSA_DIGITS).contains(&experts), "{name}: {experts}");
        let out = self.value(2 * experts, Rows::Tokens);
        self.push(name, Op::RouteAll { experts, out })
    }

    /// Products of each row with the matrices of its experts; `experts.out` is overwritten here.
    pub fn experts(&mut self, name: &'static str, mut experts: Experts) -> Value {
        let used = self.width(experts.route) / 2;
        let Weight { rows, cols, stacked, .. } = *self.weight_of(experts.stack[0]);
        let rows = rows / stacked;
        let input = self.width(experts.input);
        assert!(input == cols || input == used * cols, "{name}: {input} to {cols} columns");
        assert_eq!(self.rows(experts.input), self.rows(experts.route), "{name}");
        let count = stacked * experts.stack.len();
        for (of_experts, len) in [(experts.bias, rows), (experts.factors, 1)] {
            let Some(id) = of_experts else { continue };
            let found = self.weight_of(id);
            assert_eq!((found.stacked, found.rows, found.cols), (count, count, len), "{name}");
        }
        assert!(experts.bias.is_none() || experts.factors.is_none(), "{name}");
        experts.out = self.value(used * rows, self.rows(experts.input));
        self.push(name, Op::Experts(experts))
    }

    /// The weighted sum of the experts' results: `[rows, used * width]` to `[rows, width]`.
    pub fn mix(&mut self, name: &'static str, input: Value, route: Value) -> Value {
        let used = self.width(route) / 2;
        assert_eq!(self.width(input) % used, 0, "{name}");
        let out = self.value(self.width(input) / used, self.rows(input));
        self.push(name, Op::Mix { input, route, out })
    }
}
