// The ZeRO 0-3 programs (arXiv:1910.02054) for any number of micro-batches, at pp 1.
#pragma once
#include "engine/schedule/instruction.h"

namespace trireme {

// Every rank of a dp group gets the same instructions; `rank` is only recorded.
Program MakeZeroProgram(const Plan& plan, ProgramKind kind, int rank);

// What one buffer of this plan takes, in bytes (transient and persistent).
int64_t BufferBytes(const Plan& plan, const BufferKey& key);

}  // namespace trireme
