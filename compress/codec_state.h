// CodecState: what one worker's codecs carry from step to step, for all slabs of a group; taken over or forgotten by
// the step's verdict as a whole. Thread: one at a time.
#pragma once

#include "compress/error_feedback.h"
#include "compress/shared_scales.h"

namespace tally {

struct CodecState {
  ErrorFeedback feedback;
  ErrorFeedback velocity;  // of codecs with momentum
  SharedScales scales;     // of codecs whose codes add up as integers

  void Commit() {
    feedback.Commit();
    velocity.Commit();
    scales.Commit();
  }
  void Drop() {
    feedback.Drop();
    velocity.Drop();
    scales.Drop();
  }
};

}  // namespace tally
