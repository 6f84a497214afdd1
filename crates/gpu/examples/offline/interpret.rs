//! Executes a kernel thread by thread for the addresses it uses: index arithmetic is exact, contents of buffers are not.
//!
//! Threads run one after the other without hearing of each other: what one stores no other reads, and subgroup operations
//! return a thread's own value. Addresses of our kernels depend on neither. Buffers without given contents are zero, as
//! are results of float functions.
//!
//! A cooperative matrix is loaded as RDNA 3 does it: lane l reads row (of the left one) or column (of the right one) l modulo
//! the edge, sixteen bytes at a time.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use naga::valid::{FunctionInfo, ModuleInfo};
use naga::{
    AddressSpace, BinaryOperator as Bin, Block, BuiltIn, Expression, Function, GlobalVariable,
    Handle, MathFunction, Module, ScalarKind, Statement, Type, TypeInner,
};

use crate::layout;
use crate::words::{binary, constant, converted, unary, word_of};

/// Where memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// A storage buffer, by its binding.
    Storage(u32),
    /// A variable of the workgroup, by its number.
    Workgroup(usize),
}

/// One access of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Equal in all threads for one place in the text, reached by the same calls, at the same count of it.
    pub site: u64,
    pub place: Place,
    pub byte: u64,
    pub bytes: u64,
    pub store: bool,
}

/// What a kernel is run with.
pub struct Inputs<'a> {
    pub params: &'a [u8],
    /// Words of storage buffers, by binding.
    pub storage: &'a HashMap<u32, Vec<u32>>,
    pub workgroup: [u32; 3],
    /// Threads of a subgroup.
    pub subgroup: u32,
}

/// Bytes of a load or store of a thread.
const WIDEST: u64 = 16;

/// A value: scalars in order, four bytes each, or an address.
#[derive(Clone, Debug)]
enum Value {
    Words(Vec<u32>),
    Pointer(Pointer),
}

/// What a pointer points to.
#[derive(Clone, Copy, Debug)]
enum Target {
    Type(Handle<Type>),
    Scalar,
}

#[derive(Clone, Copy, Debug)]
enum Root {
    Uniform,
    Shared(Place),
    /// A private variable of the module.
    Private(usize),
    Local(usize),
}

#[derive(Clone, Copy, Debug)]
struct Pointer {
    root: Root,
    /// Bytes into shared memory, words into a variable of the thread.
    at: u64,
    target: Target,
}

enum Flow {
    Next,
    Break,
    Continue,
    Return(Option<Value>),
}

/// The accesses of a thread of the kernel `main`.
///
/// # Errors
/// Something in the kernel that is not known here.
pub fn accesses(
    module: &Module,
    info: &ModuleInfo,
    inputs: &Inputs<'_>,
    thread: u32,
) -> Result<Vec<Access>, String> {
    let entry = &module.entry_points[0];
    let mut machine = Machine {
        module,
        info,
        inputs,
        lane: thread % inputs.subgroup,
        privates: HashMap::new(),
        counts: HashMap::new(),
        found: Vec::new(),
    };
    let arguments = entry.function.arguments.iter().map(|argument| match &argument.binding {
        Some(naga::Binding::BuiltIn(BuiltIn::WorkGroupId)) => {
            Ok(Value::Words(inputs.workgroup.to_vec()))
        }
        Some(naga::Binding::BuiltIn(BuiltIn::LocalInvocationIndex)) => {
            Ok(Value::Words(vec![thread]))
        }
        Some(naga::Binding::BuiltIn(BuiltIn::SubgroupId)) => {
            Ok(Value::Words(vec![thread / inputs.subgroup]))
        }
        Some(naga::Binding::BuiltIn(BuiltIn::SubgroupInvocationId)) => {
            Ok(Value::Words(vec![thread % inputs.subgroup]))
        }
        Some(naga::Binding::BuiltIn(BuiltIn::SubgroupSize)) => {
            Ok(Value::Words(vec![inputs.subgroup]))
        }
        other => Err(format!("an argument {other:?}")),
    });
    let arguments = arguments.collect::<Result<_, _>>()?;
    machine.call(&entry.function, info.get_entry_point(0), arguments, 0)?;
    Ok(machine.found)
}

struct Machine<'a> {
    module: &'a Module,
    info: &'a ModuleInfo,
    inputs: &'a Inputs<'a>,
    lane: u32,
    privates: HashMap<usize, Vec<u32>>,
    counts: HashMap<u64, u32>,
    found: Vec<Access>,
}

/// A function being executed.
struct Frame<'a> {
    function: &'a Function,
    info: &'a FunctionInfo,
    arguments: Vec<Value>,
    values: HashMap<Handle<Expression>, Value>,
    locals: HashMap<usize, Vec<u32>>,
    /// Tells calls from different places apart.
    path: u64,
}

impl<'a> Machine<'a> {
    fn call(
        &mut self,
        function: &'a Function,
        info: &'a FunctionInfo,
        arguments: Vec<Value>,
        path: u64,
    ) -> Result<Option<Value>, String> {
        let (values, locals) = (HashMap::new(), HashMap::new());
        let mut frame = Frame { function, info, arguments, values, locals, path };
        for (handle, local) in function.local_variables.iter() {
            let words = match local.init {
                Some(init) => self.words(&mut frame, init)?,
                None => vec![0; layout::scalars(self.module, local.ty)],
            };
            frame.locals.insert(handle.index(), words);
        }
        match self.block(&mut frame, &function.body)? {
            Flow::Return(value) => Ok(value),
            _ => Ok(None),
        }
    }

    fn block(&mut self, frame: &mut Frame<'a>, block: &'a Block) -> Result<Flow, String> {
        for statement in block.iter() {
            match self.statement(frame, statement)? {
                Flow::Next => {}
                other => return Ok(other),
            }
        }
        Ok(Flow::Next)
    }

    fn statement(&mut self, frame: &mut Frame<'a>, one: &'a Statement) -> Result<Flow, String> {
        match one {
            Statement::Emit(range) => {
                for handle in range.clone() {
                    let value = self.evaluate(frame, handle)?;
                    frame.values.insert(handle, value);
                }
            }
            Statement::Block(block) => return self.block(frame, block),
            Statement::If { condition, accept, reject } => {
                let taken = self.words(frame, *condition)?[0] != 0;
                return self.block(frame, if taken { accept } else { reject });
            }
            Statement::Loop { body, continuing, break_if } => loop {
                match self.block(frame, body)? {
                    Flow::Break => break,
                    Flow::Return(value) => return Ok(Flow::Return(value)),
                    Flow::Next | Flow::Continue => {}
                }
                self.block(frame, continuing)?;
                if let Some(end) = break_if
                    && self.words(frame, *end)?[0] != 0
                {
                    break;
                }
            },
            Statement::Break => return Ok(Flow::Break),
            Statement::Continue => return Ok(Flow::Continue),
            Statement::Return { value } => {
                let value = value.map(|value| self.value(frame, value)).transpose()?;
                return Ok(Flow::Return(value));
            }
            Statement::ControlBarrier(_) | Statement::MemoryBarrier(_) => {}
            Statement::Store { pointer, value } => {
                let words = self.words(frame, *value)?;
                let to = self.pointer(frame, *pointer)?;
                self.store(frame, to, &words, *pointer);
            }
            Statement::Call { function, arguments, result } => {
                let values = arguments.iter().map(|argument| self.value(frame, *argument));
                let values = values.collect::<Result<_, _>>()?;
                let path = mixed(&(frame.path, std::ptr::from_ref(one) as usize));
                let (callee, info) = (&self.module.functions[*function], &self.info[*function]);
                let value = self.call(callee, info, values, path)?;
                if let (Some(result), Some(value)) = (result, value) {
                    frame.values.insert(*result, value);
                }
            }
            Statement::SubgroupGather { argument, result, .. }
            | Statement::SubgroupCollectiveOperation { argument, result, .. } => {
                let own = self.value(frame, *argument)?;
                frame.values.insert(*result, own);
            }
            // Sums are stored after the main loop, whose costs are wanted.
            Statement::CooperativeStore { .. } => {}
            other => return Err(format!("a statement {other:?}")),
        }
        Ok(Flow::Next)
    }

    fn value(&mut self, frame: &mut Frame<'a>, at: Handle<Expression>) -> Result<Value, String> {
        match frame.values.get(&at) {
            Some(value) => Ok(value.clone()),
            None => self.evaluate(frame, at),
        }
    }

    fn words(&mut self, frame: &mut Frame<'a>, at: Handle<Expression>) -> Result<Vec<u32>, String> {
        match self.value(frame, at)? {
            Value::Words(words) => Ok(words),
            Value::Pointer(_) => Err("a pointer where a value is wanted".to_owned()),
        }
    }

    fn pointer(
        &mut self,
        frame: &mut Frame<'a>,
        at: Handle<Expression>,
    ) -> Result<Pointer, String> {
        match self.value(frame, at)? {
            Value::Pointer(pointer) => Ok(pointer),
            Value::Words(_) => Err("a value where a pointer is wanted".to_owned()),
        }
    }

    fn evaluate(&mut self, frame: &mut Frame<'a>, at: Handle<Expression>) -> Result<Value, String> {
        let words = match &frame.function.expressions[at] {
            Expression::Literal(literal) => vec![word_of(literal)?],
            Expression::Constant(named) => {
                constant(self.module, self.module.constants[*named].init)?
            }
            Expression::ZeroValue(ty) => vec![0; layout::scalars(self.module, *ty)],
            Expression::Compose { components, .. } => {
                let mut words = Vec::new();
                for component in components {
                    words.extend(self.words(frame, *component)?);
                }
                words
            }
            Expression::Access { base, index } => {
                let index = self.words(frame, *index)?[0];
                return self.element(frame, *base, index);
            }
            Expression::AccessIndex { base, index } => return self.element(frame, *base, *index),
            Expression::Splat { size, value } => {
                vec![self.words(frame, *value)?[0]; *size as usize]
            }
            Expression::Swizzle { size, vector, pattern } => {
                let from = self.words(frame, *vector)?;
                pattern[..*size as usize].iter().map(|&one| from[one as usize]).collect()
            }
            Expression::FunctionArgument(index) => {
                return Ok(frame.arguments[*index as usize].clone());
            }
            Expression::GlobalVariable(global) => return self.global(*global),
            Expression::LocalVariable(local) => {
                let target = Target::Type(frame.function.local_variables[*local].ty);
                return Ok(Value::Pointer(Pointer {
                    root: Root::Local(local.index()),
                    at: 0,
                    target,
                }));
            }
            Expression::Load { pointer } => {
                let from = self.pointer(frame, *pointer)?;
                self.load(frame, from, at)?
            }
            _ => self.arithmetic(frame, at)?,
        };
        Ok(Value::Words(words))
    }

    /// The address of a variable of the module.
    fn global(&mut self, global: Handle<GlobalVariable>) -> Result<Value, String> {
        let variable = &self.module.global_variables[global];
        let root = match variable.space {
            AddressSpace::Uniform => Root::Uniform,
            AddressSpace::Storage { .. } => {
                let binding = variable.binding.as_ref().map_or(0, |at| at.binding);
                Root::Shared(Place::Storage(binding))
            }
            AddressSpace::WorkGroup => Root::Shared(Place::Workgroup(global.index())),
            AddressSpace::Private => {
                let words = vec![0; layout::scalars(self.module, variable.ty)];
                self.privates.entry(global.index()).or_insert(words);
                Root::Private(global.index())
            }
            other => return Err(format!("a variable in {other:?}")),
        };
        Ok(Value::Pointer(Pointer { root, at: 0, target: Target::Type(variable.ty) }))
    }

    /// The words of an expression that computes.
    fn arithmetic(
        &mut self,
        frame: &mut Frame<'a>,
        at: Handle<Expression>,
    ) -> Result<Vec<u32>, String> {
        Ok(match &frame.function.expressions[at] {
            Expression::Unary { op, expr } => {
                let kind = self.kind(frame, *expr);
                let from = self.words(frame, *expr)?;
                from.into_iter().map(|word| unary(*op, word, kind)).collect()
            }
            Expression::Binary { op, left, right } => {
                let kind = self.kind(frame, *left);
                let (mut a, mut b) = (self.words(frame, *left)?, self.words(frame, *right)?);
                // Products with matrices and scalars of other sizes are floats, whose values do not matter.
                let len = a.len().max(b.len());
                a.resize(len, a[0]);
                b.resize(len, b[0]);
                a.into_iter().zip(b).map(|(a, b)| binary(*op, a, b, kind)).collect()
            }
            Expression::Select { condition, accept, reject } => {
                let taken = self.words(frame, *condition)?;
                let (yes, no) = (self.words(frame, *accept)?, self.words(frame, *reject)?);
                let pick =
                    |i: usize| if taken[i.min(taken.len() - 1)] != 0 { yes[i] } else { no[i] };
                (0..yes.len()).map(pick).collect()
            }
            Expression::Relational { .. } => vec![0; self.scalars_of(frame, at)],
            Expression::Math { fun, arg, arg1, arg2, .. } => {
                self.math(frame, at, *fun, [Some(*arg), *arg1, *arg2])?
            }
            Expression::As { expr, kind, convert } => {
                let from = self.kind(frame, *expr);
                let words = self.words(frame, *expr)?;
                match convert {
                    None => words,
                    Some(_) => words.into_iter().map(|word| converted(word, from, *kind)).collect(),
                }
            }
            Expression::ArrayLength(_) => vec![u32::MAX],
            Expression::CooperativeLoad { rows, data, .. } => {
                self.load_matrix(frame, at, *rows as u32, data)?;
                vec![0]
            }
            Expression::CooperativeMultiplyAdd { .. } => vec![0],
            other => return Err(format!("an expression {other:?}")),
        })
    }

    /// Notes what this lane reads of a matrix of halves: a line of it, as RDNA 3 does.
    fn load_matrix(
        &mut self,
        frame: &mut Frame<'a>,
        at: Handle<Expression>,
        edge: u32,
        data: &naga::CooperativeData,
    ) -> Result<(), String> {
        let from = self.pointer(frame, data.pointer)?;
        let stride = u64::from(self.words(frame, data.stride)?[0]);
        let (Root::Shared(place), Target::Type(ty)) = (from.root, from.target) else {
            return Err("a matrix that is not in shared memory".to_owned());
        };
        let inner = &self.module.types[ty].inner;
        let width = layout::width(inner);
        // The stride counts what the pointer points to, a half or several.
        let step = width * layout::scalars(self.module, ty) as u64;
        // Sums are loaded once, before the main loop.
        if width == 2 {
            let start = from.at + u64::from(self.lane % edge) * stride * step;
            for byte in (0..u64::from(edge) * width).step_by(WIDEST as usize) {
                self.note(frame, place, (start + byte, WIDEST, false), at);
            }
        }
        Ok(())
    }

    /// An element of a value, or its address.
    fn element(
        &mut self,
        frame: &mut Frame<'a>,
        base: Handle<Expression>,
        index: u32,
    ) -> Result<Value, String> {
        match self.value(frame, base)? {
            Value::Words(words) => {
                let inner = frame.info[base].ty.inner_with(&self.module.types);
                let (from, len) = layout::words_of(self.module, inner, index)?;
                Ok(Value::Words(words[from..from + len].to_vec()))
            }
            Value::Pointer(pointer) => {
                let Target::Type(ty) = pointer.target else {
                    return Err("an element of a scalar".to_owned());
                };
                let inner = &self.module.types[ty].inner;
                let bytes = match inner {
                    TypeInner::Array { stride, .. } => *stride * index,
                    TypeInner::Struct { members, .. } => members[index as usize].offset,
                    TypeInner::Vector { .. } => layout::width(inner) as u32 * index,
                    other => return Err(format!("an element of {other:?}")),
                };
                let target = match inner {
                    TypeInner::Array { base, .. } => Target::Type(*base),
                    TypeInner::Struct { members, .. } => Target::Type(members[index as usize].ty),
                    _ => Target::Scalar,
                };
                let step = match pointer.root {
                    Root::Uniform | Root::Shared(_) => u64::from(bytes),
                    Root::Private(_) | Root::Local(_) => {
                        layout::words_of(self.module, inner, index)?.0 as u64
                    }
                };
                Ok(Value::Pointer(Pointer { at: pointer.at + step, target, ..pointer }))
            }
        }
    }

    fn scalars_of(&self, frame: &Frame<'a>, at: Handle<Expression>) -> usize {
        layout::scalars_in(self.module, frame.info[at].ty.inner_with(&self.module.types))
    }

    fn kind(&self, frame: &Frame<'a>, at: Handle<Expression>) -> Option<ScalarKind> {
        frame.info[at].ty.inner_with(&self.module.types).scalar_kind()
    }

    fn load(
        &mut self,
        frame: &mut Frame<'a>,
        from: Pointer,
        at: Handle<Expression>,
    ) -> Result<Vec<u32>, String> {
        let len = match from.target {
            Target::Type(ty) => layout::scalars(self.module, ty),
            Target::Scalar => 1,
        };
        let mut offsets = Vec::new();
        match from.target {
            Target::Type(ty) => layout::offsets(self.module, ty, from.at, &mut offsets),
            Target::Scalar => offsets.push(from.at),
        }
        let inputs = self.inputs;
        Ok(match from.root {
            Root::Local(local) => frame.locals[&local][from.at as usize..][..len].to_vec(),
            Root::Private(global) => self.privates[&global][from.at as usize..][..len].to_vec(),
            Root::Uniform => {
                let word = |&at: &u64| {
                    let bytes = inputs.params.get(at as usize..at as usize + 4)?;
                    Some(u32::from_le_bytes(bytes.try_into().ok()?))
                };
                let words: Option<Vec<u32>> = offsets.iter().map(word).collect();
                words.ok_or("a parameter beyond the end")?
            }
            Root::Shared(place) => {
                let bytes = match from.target {
                    Target::Type(ty) => u64::from(layout::bytes_of(self.module, ty, len)),
                    Target::Scalar => 4,
                };
                self.note(frame, place, (from.at, bytes, false), at);
                let known = match place {
                    Place::Storage(binding) => inputs.storage.get(&binding),
                    Place::Workgroup(_) => None,
                };
                let word = |&at: &u64| known.and_then(|words| words.get(at as usize / 4)).copied();
                offsets.iter().map(|at| word(at).unwrap_or(0)).collect()
            }
        })
    }

    fn store(&mut self, frame: &mut Frame<'a>, to: Pointer, words: &[u32], at: Handle<Expression>) {
        let range = to.at as usize..to.at as usize + words.len();
        match to.root {
            Root::Local(local) => {
                frame.locals.entry(local).and_modify(|all| all[range].copy_from_slice(words));
            }
            Root::Private(global) => {
                self.privates.entry(global).and_modify(|all| all[range].copy_from_slice(words));
            }
            Root::Shared(place) => {
                let bytes = match to.target {
                    Target::Type(ty) => u64::from(layout::bytes_of(self.module, ty, words.len())),
                    Target::Scalar => 4,
                };
                if !self.is_joined(place, (to.at, bytes)) {
                    self.note(frame, place, (to.at, bytes, true), at);
                }
            }
            Root::Uniform => {}
        }
    }

    /// Adds a store of less than a word to the one before, as compilers do, if it continues that.
    fn is_joined(&mut self, place: Place, (byte, bytes): (u64, u64)) -> bool {
        let Some(last) = self.found.last_mut().filter(|last| last.store && bytes < 4) else {
            return false;
        };
        let follows = last.place == place && last.byte + last.bytes == byte;
        // A store of whole vectors begins at a multiple of its size.
        let fits = last.byte / WIDEST == byte / WIDEST;
        if follows && fits {
            last.bytes += bytes;
        }
        follows && fits
    }

    /// Records an access: its place, its bytes, and whether it is a store.
    fn note(
        &mut self,
        frame: &Frame<'a>,
        place: Place,
        (byte, bytes, store): (u64, u64, bool),
        at: Handle<Expression>,
    ) {
        let text = mixed(&(frame.path, at.index(), store));
        let count = self.counts.entry(text).or_default();
        let site = mixed(&(text, *count));
        *count += 1;
        self.found.push(Access { site, place, byte, bytes, store });
    }

    fn math(
        &mut self,
        frame: &mut Frame<'a>,
        at: Handle<Expression>,
        fun: MathFunction,
        arguments: [Option<Handle<Expression>>; 3],
    ) -> Result<Vec<u32>, String> {
        let [first, second, third] = arguments;
        let first = first.ok_or("a function of nothing")?;
        let kind = self.kind(frame, first);
        let len = self.scalars_of(frame, at);
        let mut operands = vec![self.words(frame, first)?];
        for other in [second, third].into_iter().flatten() {
            operands.push(self.words(frame, other)?);
        }
        let of = |i: usize| (operands[0][i], operands.get(1).map_or(0, |one| one[i]));
        let integers = matches!(kind, Some(ScalarKind::Sint | ScalarKind::Uint));
        let pick =
            |op: Bin| move |(a, b): (u32, u32)| if binary(op, a, b, kind) != 0 { a } else { b };
        match fun {
            MathFunction::Min if integers => Ok((0..len).map(of).map(pick(Bin::Less)).collect()),
            MathFunction::Max if integers => Ok((0..len).map(of).map(pick(Bin::Greater)).collect()),
            MathFunction::Clamp if integers => {
                let low = (0..len).map(|i| pick(Bin::Greater)((operands[0][i], operands[1][i])));
                Ok(low.enumerate().map(|(i, a)| pick(Bin::Less)((a, operands[2][i]))).collect())
            }
            _ => Ok(vec![0; len]),
        }
    }
}

fn mixed(key: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}
