//! Checks of a step: that the file did not change, and which op made a result that is not finite.

use bilayer_graph::{Backend, Limits, SegmentId};

use super::batch::Work;
use super::failed::Failed;
use super::pipeline::{self, Calls, Pipeline};
use super::{Run, Session, fallback};
use crate::Error;

impl Session {
    /// Checks that the weights that a step read are those of the file that was opened. Devices with copies of all
    /// weights do not read the file any more.
    pub(super) fn check_file(&self) -> Result<(), Failed> {
        let read = self.backends().any(|backend| !backend.facts().copies_weights);
        let checked = if read { self.model.file().check_unchanged() } else { Ok(()) };
        checked.map_err(|error| Failed::Other(Error::File(error)))
    }

    /// Recompiles every segment with checks after each op and repeats the step: the first op with a result that is
    /// not finite is reported. Slow, and used only on the way to an error.
    pub(super) fn name_the_culprit(&mut self, runs: &[Run<'_>], micro_rows: usize) -> Error {
        let firsts: Vec<SegmentId> = self.backends().map(Backend::next_segment).collect();
        let error = self.repeat_checked(runs, micro_rows);
        for (backend, &first) in self.pipeline.backends.iter_mut().zip(&firsts) {
            backend.free_segments(first);
        }
        error
    }

    /// Repeats the step in segments that are compiled for it, and returns the error for it.
    fn repeat_checked(&mut self, runs: &[Run<'_>], micro_rows: usize) -> Error {
        let checked = Limits { check: true, fuse: false, ..self.limits };
        if self.repeat_before(runs).is_err() {
            return Error::LogitsNotFinite;
        }
        let Pipeline { backends, carried, .. } = &mut self.pipeline;
        let segments = pipeline::compile(&self.graph, &self.plan, backends, carried, checked);
        let Ok(segments) = segments else { return Error::LogitsNotFinite };
        let overlap = std::mem::replace(&mut self.pipeline.overlap, false);
        let usual = std::mem::replace(&mut self.pipeline.segments, segments);
        let cut = self.cut(micro_rows);
        let Session { pipeline, starts, cache, copies, strengths, .. } = self;
        let work = Work { runs, starts, cache, copies, strengths, cut, top_k: 0 };
        let found = pipeline.run(&work, &mut Calls::each(&mut |_| true));
        self.pipeline.segments = usual;
        self.pipeline.overlap = overlap;
        match found {
            Err(Failed::Device {
                error: error @ bilayer_graph::Error::NotFinite { .. }, ..
            }) => error.into(),
            _ => Error::LogitsNotFinite,
        }
    }

    /// Brings the states that a step has updated to where they were before it.
    fn repeat_before(&mut self, runs: &[Run<'_>]) -> Result<(), Failed> {
        let Session { pipeline, starts, cache, strengths, limits, .. } = self;
        for (run, &start) in runs.iter().zip(&*starts) {
            let there = cache.resumable(run.sequence, start);
            if there < start {
                let text = (run.sequence, there..start);
                fallback::compute(pipeline, (cache, strengths), text, limits)?;
            }
        }
        Ok(())
    }
}
