// Why names of other programs do nothing here, where more than one table says so.
#pragma once

#include <string_view>

namespace trireme::config {

inline constexpr std::string_view kLater = "not supported yet";
inline constexpr std::string_view kAllFp32 =
    "not supported yet; gradients are accumulated and summed in fp32";
inline constexpr std::string_view kNoOffload =
    "not supported yet; leave it out, and trireme plan says whether the run fits without";
inline constexpr std::string_view kKernels = "the native kernels are what runs, on every device";
inline constexpr std::string_view kUnits = "the units that are sharded are the model's blocks";
inline constexpr std::string_view kNoTracker = "no tracker is fed";
inline constexpr std::string_view kNoPadding =
    "a micro-batch is its tokens laid end to end, without padding";
inline constexpr std::string_view kOwnSlice = "every rank reads its own slice of the weights";

}  // namespace trireme::config
