#include "compress/simd_target.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/simd_target.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace tally::HWY_NAMESPACE {

const char* Name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace tally::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tally {

HWY_EXPORT(Name);

std::string_view SimdTarget() { return HWY_DYNAMIC_DISPATCH(Name)(); }

}  // namespace tally
#endif  // HWY_ONCE
