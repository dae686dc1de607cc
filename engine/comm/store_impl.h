// Store's inside, for store.cpp and gloo.cpp: c10d headers are slow to compile and stay in these two.
#pragma once
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <map>
#include <mutex>
#include <string>

#include "engine/comm/store.h"

namespace trireme {

struct Store::Impl {
  RendezvousInfo info;
  c10::intrusive_ptr<c10d::TCPStore> tcp;
  std::mutex mutex;  // guards `generations`
  std::map<std::string, int64_t> generations;

  std::string Key(const std::string& key) const { return info.prefix + key; }
};

}  // namespace trireme
