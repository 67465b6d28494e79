// SPDX-License-Identifier: Apache-2.0
//
// A device for PyTorch (PrivateUse1).  The host cannot access the device's memory: a tensor's
// address is of pages without permissions, and the device works on a second mapping of the same
// pages.  Each stream is a thread that runs operations late, in order.  The stream overwrites
// freed memory of the device.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

namespace {

constexpr auto KIND = c10::DeviceType::PrivateUse1;
constexpr size_t ARENA = size_t(1) << 32, PAGE = 4096;

// ---------------------------------------------------------------------- streams

std::atomic<int> delay_us{0};
std::atomic<int64_t> n_async{0};  // copies after which the host went on
std::atomic<bool> fails{false};
std::atomic<bool> is_held{false};  // no stream begins an operation

struct Stream {
    std::mutex lock;
    std::condition_variable changed;
    std::deque<std::function<void()>> work;
    int64_t queued = 0, done = 0;
    std::thread thread{[this] { run(); }};

    void run() {
        std::unique_lock<std::mutex> held(lock);
        for (;;) {
            changed.wait(held, [this] { return !work.empty(); });
            auto one = std::move(work.front());
            work.pop_front();
            held.unlock();
            do usleep(delay_us);
            while (is_held);
            one();
            one = nullptr;
            held.lock();
            done++;
            changed.notify_all();
        }
    }
    int64_t add(std::function<void()> one) {
        std::lock_guard<std::mutex> held(lock);
        work.push_back(std::move(one));
        changed.notify_all();
        return ++queued;
    }
    bool has_done(int64_t n) {
        std::lock_guard<std::mutex> held(lock);
        return done >= n;
    }
    void wait(int64_t n) {
        std::unique_lock<std::mutex> held(lock);
        changed.wait(held, [&] { return done >= n; });
    }
    void settle() {
        wait(add([] {}));
    }
};

Stream *streams() {
    static Stream *all = new Stream[2];  // the threads never end
    return all;
}

thread_local c10::StreamId current = 0;

Stream &now() { return streams()[current]; }

// ----------------------------------------------------------------------- memory

struct Memory final : c10::Allocator {
    char *closed, *open;  // the host's mapping without permissions; the device's mapping
    std::mutex lock;
    size_t used = 0;
    std::multimap<size_t, char *> free;
    std::map<char *, size_t> sizes;

    Memory() {
        int fd = memfd_create("device", MFD_CLOEXEC);
        TORCH_CHECK(fd >= 0 && !ftruncate(fd, ARENA), "no memory for the device");
        closed = (char *)mmap(nullptr, ARENA, PROT_NONE, MAP_SHARED, fd, 0);
        open = (char *)mmap(nullptr, ARENA, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        TORCH_CHECK(closed != MAP_FAILED && open != MAP_FAILED, "no memory for the device");
        close(fd);
    }
    c10::DataPtr allocate(size_t n) override {
        n = (n + PAGE) / PAGE * PAGE;
        std::lock_guard<std::mutex> held(lock);
        char *at;
        auto found = free.find(n);
        if (found != free.end()) {
            at = found->second;
            free.erase(found);
        } else {
            TORCH_CHECK(used + n <= ARENA, "the device is out of memory");
            at = closed + used;
            used += n;
        }
        sizes[at] = n;
        return {at, at, &release, c10::Device(KIND, 0)};
    }
    static void release(void *p);
    c10::DeleterFnPtr raw_deleter() const override { return &release; }
    void copy_data(void *to, const void *from, size_t n) const override {
        char *a = (char *)to + (open - closed), *b = (char *)from + (open - closed);
        now().add([=] { memcpy(a, b, n); });
    }
};

Memory *memory() {
    static Memory *one = new Memory;
    return one;
}

void Memory::release(void *p) {
    Memory *m = memory();
    std::lock_guard<std::mutex> held(m->lock);
    size_t n = m->sizes[(char *)p];
    char *at = (char *)p + (m->open - m->closed);
    now().add([=] { memset(at, 0xdb, n); });
    m->free.emplace(n, (char *)p);
}

// Memory of the host that the device accesses while the host goes on.
struct Pinned final : c10::Allocator {
    std::mutex lock;
    std::map<const char *, size_t> sizes;

    c10::DataPtr allocate(size_t n) override {
        char *at = new char[n + 64];
        std::lock_guard<std::mutex> held(lock);
        sizes[at] = n;
        return {at, at, &release, c10::Device(c10::DeviceType::CPU)};
    }
    static void release(void *p);
    c10::DeleterFnPtr raw_deleter() const override { return &release; }
    void copy_data(void *to, const void *from, size_t n) const override { memcpy(to, from, n); }
    bool has(const void *p) {
        std::lock_guard<std::mutex> held(lock);
        auto found = sizes.upper_bound((const char *)p);
        if (found == sizes.begin()) return false;
        --found;
        return (const char *)p < found->first + found->second + 1;
    }
};

Pinned *pinned() {
    static Pinned *one = new Pinned;
    return one;
}

void Pinned::release(void *p) {
    streams()[0].settle();
    streams()[1].settle();
    std::lock_guard<std::mutex> held(pinned()->lock);
    pinned()->sizes.erase((const char *)p);
    delete[] (char *)p;
}

// ----------------------------------------------------- what PyTorch asks a device

struct Event {
    Stream *stream = nullptr;
    int64_t at = 0;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return KIND; }
    c10::Device exchangeDevice(c10::Device) const override { return {KIND, 0}; }
    c10::Device getDevice() const override { return {KIND, 0}; }
    void setDevice(c10::Device) const override {}
    void uncheckedSetDevice(c10::Device) const noexcept override {}
    c10::DeviceIndex deviceCount() const noexcept override { return 1; }
    c10::Stream stream(c10::StreamId id) const {
        return c10::Stream(c10::Stream::UNSAFE, c10::Device(KIND, 0), id);
    }
    c10::Stream getStream(c10::Device) const override { return stream(current); }
    c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
    c10::Stream getNewStream(c10::Device, int) const override { return stream(1); }
    c10::Stream exchangeStream(c10::Stream to) const override {
        auto from = stream(current);
        current = to.id();
        return from;
    }
    void record(void **event, const c10::Stream &on, c10::DeviceIndex,
                c10::EventFlag) const override {
        if (!*event) *event = new Event;
        auto *one = (Event *)*event;
        one->stream = &streams()[on.id()];
        one->at = one->stream->add([] {});
    }
    void block(void *event, const c10::Stream &on) const override {
        auto one = *(Event *)event;
        streams()[on.id()].add([one] { one.stream->wait(one.at); });
    }
    bool queryEvent(void *event) const override {
        auto *one = (Event *)event;
        return !one || one->stream->has_done(one->at);
    }
    void synchronizeEvent(void *event) const override {
        auto *one = (Event *)event;
        if (one) one->stream->wait(one->at);
    }
    void destroyEvent(void *event, c10::DeviceIndex) const noexcept override {
        delete (Event *)event;
    }
    bool queryStream(const c10::Stream &on) const override {
        auto &one = streams()[on.id()];
        std::lock_guard<std::mutex> held(one.lock);
        return one.done == one.queued;
    }
    void synchronizeStream(const c10::Stream &on) const override {
        streams()[on.id()].settle();
    }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Hooks final : at::PrivateUse1HooksInterface {
    bool isBuilt() const override { return true; }
    bool isAvailable() const override { return true; }
    bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
    c10::DeviceIndex deviceCount() const override { return 1; }
    c10::DeviceIndex getCurrentDevice() const override { return 0; }
    void setCurrentDevice(c10::DeviceIndex) const override {}
    bool isPinnedPtr(const void *p) const override { return pinned()->has(p); }
    c10::Allocator *getPinnedMemoryAllocator() const override { return pinned(); }
};

// -------------------------------------------------------------------- operations

// A tensor as the device sees it: a CPU tensor of the device's mapping, or of pinned memory.
at::Tensor seen(const at::Tensor &t) {
    char *at = (char *)t.data_ptr();
    if (t.device().type() == KIND) at += memory()->open - memory()->closed;
    return at::from_blob(at, t.sizes(), t.strides(), t.options().device(c10::kCPU));
}

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
    return at::detail::empty_generic(size, memory(),
                                     c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                     dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
    return at::detail::empty_strided_generic(size, stride, memory(),
                                             c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                             dtype.value_or(at::kFloat));
}

// The device reads pageable memory before the call returns; otherwise nothing keeps a source or a
// destination alive: an early free is an error of the caller that the tests find.
at::Tensor copy_from(const at::Tensor &from, const at::Tensor &to, bool non_blocking) {
    TORCH_CHECK(!fails, "the device fails, as the test says");
    if (from.scalar_type() != to.scalar_type() && from.device().type() != to.device().type()) {
        auto same = from.to(to.scalar_type());
        return copy_from(same, to, false);
    }
    auto a = seen(from), b = seen(to);
    now().add([a, b]() mutable { b.copy_(a.expand_as(b)); });
    bool is_late = true;
    for (auto *t : {&from, &to})
        if (t->device().type() != KIND && !pinned()->has(t->data_ptr())) is_late = false;
    if (from.device().type() != to.device().type()) {
        if (non_blocking && is_late)
            n_async++;
        else
            now().settle();
    }
    return to;
}

at::Tensor &fill(at::Tensor &self, const at::Scalar &value) {
    auto a = seen(self);
    now().add([a, value]() mutable { a.fill_(value); });
    return self;
}

at::Tensor &zero(at::Tensor &self) { return fill(self, 0); }

at::Tensor index_select(const at::Tensor &self, int64_t dim, const at::Tensor &ids) {
    auto size = self.sizes().vec();
    size[dim] = ids.numel();
    auto out = at::empty(size, self.options());
    auto a = seen(self), b = seen(ids), c = seen(out);
    now().add([=]() mutable { c.copy_(at::index_select(a, dim, b)); });
    return out;
}

at::Tensor &index_copy(at::Tensor &self, int64_t dim, const at::Tensor &ids,
                       const at::Tensor &source) {
    auto a = seen(self), b = seen(ids), c = seen(source);
    now().add([=]() mutable { a.index_copy_(dim, b, c); });
    return self;
}

at::Tensor cat(const at::ITensorListRef &all, int64_t dim) {
    std::vector<at::Tensor> from;
    int64_t n = 0;
    auto first = *all.begin();
    for (const at::Tensor &one : all) {
        from.push_back(seen(one));
        n += one.size(dim);
    }
    auto size = from[0].sizes().vec();
    dim = dim < 0 ? dim + (int64_t)size.size() : dim;
    size[dim] = n;
    auto out = at::empty(size, from[0].options().device(c10::Device(KIND, 0)));
    auto to = seen(out);
    now().add([=]() mutable { to.copy_(at::cat(from, dim)); });
    return out;
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
    m.impl("empty.memory_format", empty);
    m.impl("empty_strided", empty_strided);
    m.impl("as_strided", at::native::as_strided_tensorimpl);
    m.impl("view", at::native::view);
    m.impl("_copy_from", copy_from);
    m.impl("fill_.Scalar", fill);
    m.impl("zero_", zero);
    m.impl("index_select", index_select);
    m.impl("index_copy_", index_copy);
    m.impl("cat", cat);
}

}  // namespace

extern "C" void device_start() {
    static Hooks hooks;
    at::RegisterPrivateUse1HooksInterface(&hooks);
    c10::SetAllocator(KIND, memory());
}
extern "C" void device_set_delay(int us) { delay_us = us; }
extern "C" void device_hold(int yes) { is_held = yes; }
extern "C" void device_set_fails(int yes) { fails = yes; }
extern "C" int64_t device_n_async() { return n_async; }
extern "C" void device_synchronize() {
    streams()[0].settle();
    streams()[1].settle();
}
