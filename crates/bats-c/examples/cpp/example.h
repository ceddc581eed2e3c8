// Helpers of the examples: an assertion for release builds, waiting, and the mode as an argument.
#ifndef EXAMPLE_H
#define EXAMPLE_H

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "include/cpp/bats_protocol.h"

inline void Require(bool condition, const char* what) {
  if (!condition) {
    std::fprintf(stderr, "failed: %s (%s)\n", what, openbats::LastError().c_str());
    std::exit(1);
  }
}

// Lets the main thread wait for conditions that callbacks change.
class Signal {
 public:
  template <typename Change>
  void Update(Change change) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      change();
    }
    changed_.notify_all();
  }

  template <typename Condition>
  void Await(Condition condition, const char* what) {
    std::unique_lock<std::mutex> lock(mutex_);
    Require(changed_.wait_for(lock, std::chrono::seconds(60), condition), what);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
};

// Uses BRTP, or the mode number given as first argument.
inline BatsConfiguration ExampleConfig(int argc, char** argv) {
  BatsConfiguration config;
  config.SetMode(argc > 1 ? static_cast<TransMode>(std::atoi(argv[1])) : TransMode::BRTP);
  config.SetTimeout(20000);
  return config;
}

#endif
