/* SPDX-License-Identifier: Apache-2.0
 *
 * Compare function types, in C++, whose templates can take a type apart: may a function of one type
 * be called by another type?  Pointers and integers of equal size count as equal, because the
 * ABI passes both alike.  The targets of pointers must have equal sizes, if both sizes are
 * known. */
#ifndef KVT_TEST_SAME_ABI_H
#define KVT_TEST_SAME_ABI_H

#include <cstddef>
#include <type_traits>

template <class T, class = void> struct size_told : std::integral_constant<size_t, 0> {};
template <class T>
struct size_told<T, std::enable_if_t<std::is_object<T>::value && (sizeof(T) > 0)>>
    : std::integral_constant<size_t, sizeof(T)> {};

template <class A, class B> constexpr bool same_value();

template <class A, class B>
constexpr bool
same_target()
{
    constexpr size_t a = size_told<A>::value, b = size_told<B>::value;

    if constexpr (a == 0 || b == 0)
        return true; /* opaque, or void */
    else
        return same_value<A, B>();
}

template <class A, class B>
constexpr bool
same_value()
{
    if constexpr (std::is_void<A>::value || std::is_void<B>::value)
        return std::is_void<A>::value && std::is_void<B>::value;
    else if constexpr (sizeof(A) != sizeof(B) || alignof(A) != alignof(B) ||
                       std::is_floating_point<A>::value !=
                           std::is_floating_point<B>::value ||
                       std::is_class<A>::value != std::is_class<B>::value ||
                       std::is_same<std::remove_cv_t<A>, bool>::value !=
                           std::is_same<std::remove_cv_t<B>, bool>::value)
        return false;
    else if constexpr (std::is_pointer<A>::value && std::is_pointer<B>::value)
        return same_target<std::remove_pointer_t<A>, std::remove_pointer_t<B>>();
    else
        return true;
}

template <class A, class B> struct same_call : std::false_type {};
template <class R, class... P, class S, class... Q>
struct same_call<R (*)(P...), S (*)(Q...)> {
    static constexpr bool
    all()
    {
        if constexpr (sizeof...(P) != sizeof...(Q))
            return false;
        else
            return same_value<R, S>() && (same_value<P, Q>() && ...);
    }
    static constexpr bool value = all();
};

#define SAME_CALL(name, type) static_assert(same_call<decltype(&name), type>::value, #name)
#define SAME_NUMBER(ours, theirs)                                                          \
    static_assert((long long)(ours) == (long long)(theirs), #ours " is not " #theirs)
#define SAME_SIZE(ours, theirs)                                                            \
    static_assert(sizeof(ours) == sizeof(theirs) && alignof(ours) == alignof(theirs),      \
                  #ours " is not " #theirs)
#define SAME_PLACE(ours, member, theirs, other)                                            \
    static_assert(offsetof(ours, member) == offsetof(theirs, other) &&                     \
                      sizeof(((ours *)0)->member) == sizeof(((theirs *)0)->other),         \
                  #ours "." #member " is not " #theirs "." #other)

#endif
