// The kernel as a Python module: buffers in, buffers out. All checks of shapes and types are made in Python, in
// hyphash/hamming/__init__.py; what is checked here is only that every buffer is as long as it has to be.

#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <memory>
#include <new>
#include <stdexcept>

#include "buckets.hpp"

namespace {

using namespace hyphash;

struct PythonError {};  // an exception that Python knows already

std::atomic<const Instructions*> chosen{available().front()};

const Instructions& instructions() { return *chosen; }

// The arguments of a call; buffers are given back when it ends.
class Arguments {
public:
    Arguments(PyObject* const* values, Py_ssize_t count, Py_ssize_t wanted) : values_(values) {
        if (count == wanted) return;
        PyErr_Format(PyExc_TypeError, "%zd arguments expected, not %zd", wanted, count);
        throw PythonError();
    }
    ~Arguments() {
        for (int i = 0; i < used_; ++i) PyBuffer_Release(&views_[i]);
    }
    Arguments(const Arguments&) = delete;
    Arguments& operator=(const Arguments&) = delete;

    int64_t integer() {
        const long long value = PyLong_AsLongLong(values_[next_++]);
        if (value == -1 && PyErr_Occurred()) throw PythonError();
        return value;
    }

    // `length` values of type T; writable unless T is const.
    template <class T>
    T* buffer(int64_t length) {
        const Py_buffer& view = get(std::is_const<T>::value ? PyBUF_SIMPLE : PyBUF_WRITABLE);
        if (view.len != length * int64_t(sizeof(T))) {
            PyErr_Format(PyExc_ValueError, "argument %d: %lld bytes expected, not %zd", next_,
                         (long long)(length * int64_t(sizeof(T))), view.len);
            throw PythonError();
        }
        return static_cast<T*>(view.buf);
    }

    template <class T>
    T* optional(int64_t length) {
        if (values_[next_] != Py_None) return buffer<T>(length);
        ++next_;
        return nullptr;
    }

    PyObject* object() { return values_[next_++]; }

    Rows rows(int size) {
        const Py_buffer& view = get(PyBUF_SIMPLE);
        return {static_cast<const uint8_t*>(view.buf), view.len / size, size};
    }

private:
    const Py_buffer& get(int flags) {
        if (PyObject_GetBuffer(values_[next_++], &views_[used_], flags) < 0) throw PythonError();
        return views_[used_++];
    }

    PyObject* const* values_;
    int next_ = 0, used_ = 0;
    Py_buffer views_[16];
};

// Work without holding the interpreter's lock.
template <class Work>
PyObject* run(Work work) {
    PyThreadState* state = PyEval_SaveThread();
    try {
        work();
    } catch (...) {
        PyEval_RestoreThread(state);
        throw;
    }
    PyEval_RestoreThread(state);
    Py_INCREF(Py_None);
    return Py_None;
}

template <PyObject* (*call)(PyObject* const*, Py_ssize_t)>
PyObject* guarded(PyObject*, PyObject* const* values, Py_ssize_t count) {
    try {
        return call(values, count);
    } catch (const PythonError&) {
        return nullptr;
    } catch (const std::bad_alloc&) {
        return PyErr_NoMemory();
    } catch (const std::out_of_range& error) {
        PyErr_SetString(PyExc_IndexError, error.what());
        return nullptr;
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }
}

int bytes_for(int bits) { return (bits + 7) / 8; }

// search(bits, threads, radius, k, queries, database, mask, offsets, distances, ids)
PyObject* search(PyObject* const* values, Py_ssize_t count) {
    Arguments given(values, count, 10);
    const int bits = int(given.integer()), threads = int(given.integer()), radius = int(given.integer());
    const int64_t k = given.integer();
    const Rows queries = given.rows(bytes_for(bits)), database = given.rows(bytes_for(bits));
    const bool* mask = given.optional<const bool>(database.count);
    const Places places{k, given.optional<const int64_t>(queries.count + 1)};
    const int64_t results = places.start(queries.count);
    int32_t* distances = given.buffer<int32_t>(results);
    int64_t* ids = given.buffer<int64_t>(results);
    return run([&] {
        hyphash::search(instructions(), queries, database, mask, radius, places, threads, distances, ids);
    });
}

// count_within(bits, threads, radius, queries, database, mask, counts)
PyObject* count_within(PyObject* const* values, Py_ssize_t count) {
    Arguments given(values, count, 7);
    const int bits = int(given.integer()), threads = int(given.integer()), radius = int(given.integer());
    const Rows queries = given.rows(bytes_for(bits)), database = given.rows(bytes_for(bits));
    const bool* mask = given.optional<const bool>(database.count);
    int64_t* counts = given.buffer<int64_t>(queries.count);
    return run([&] {
        hyphash::count_within(instructions(), queries, database, mask, radius, threads, counts);
    });
}

// histogram(bits, threads, label_bytes, queries, database, query_labels, database_labels, 4 results)
PyObject* histogram(PyObject* const* values, Py_ssize_t count) {
    Arguments given(values, count, 11);
    const int bits = int(given.integer()), threads = int(given.integer()), label_bytes = int(given.integer());
    const Rows queries = given.rows(bytes_for(bits)), database = given.rows(bytes_for(bits));
    const Rows query_labels{given.buffer<const uint8_t>(queries.count * label_bytes), queries.count, label_bytes};
    const Rows labels{given.buffer<const uint8_t>(database.count * label_bytes), database.count, label_bytes};
    const int64_t results = queries.count * (bits + 1);
    HistogramOutput out{};
    out.count = given.buffer<int64_t>(results);
    out.relevant = given.buffer<int64_t>(results);
    out.gain = given.buffer<int64_t>(results);
    out.exp_gain = given.buffer<double>(results);
    return run([&] {
        hyphash::histogram(instructions(), {queries, query_labels}, {database, labels}, bits, threads, out);
    });
}

// search_tables(size, threads, k, count, tables, database, mask, scores, ids)
PyObject* search_tables(PyObject* const* values, Py_ssize_t count) {
    Arguments given(values, count, 9);
    const int size = int(given.integer()), threads = int(given.integer());
    const int64_t k = given.integer(), queries = given.integer();
    const float* tables = given.buffer<const float>(queries * size * 256);
    const Rows database = given.rows(size);
    const bool* mask = given.optional<const bool>(database.count);
    float* scores = given.buffer<float>(queries * k);
    int64_t* ids = given.buffer<int64_t>(queries * k);
    return run([&] { hyphash::search_tables(tables, queries, database, mask, k, threads, scores, ids); });
}

// Any number of buffers, given back at the end.
struct Buffers {
    std::vector<Py_buffer> buffers;

    template <class T>
    const T* hold(PyObject* object, int64_t at_least) {
        Py_buffer buffer;
        if (PyObject_GetBuffer(object, &buffer, PyBUF_SIMPLE) < 0) throw PythonError();
        buffers.push_back(buffer);
        if (buffer.len < at_least * int64_t(sizeof(T))) {
            PyErr_SetString(PyExc_ValueError, "a section of the index is too short");
            throw PythonError();
        }
        return static_cast<const T*>(buffer.buf);
    }

    Buffers() = default;
    Buffers(const Buffers&) = delete;
    Buffers& operator=(const Buffers&) = delete;
    ~Buffers() {
        for (Py_buffer& buffer : buffers) PyBuffer_Release(&buffer);
    }
};

// rank_planes(count, threads, k, every, some, tables, size, codes, code tables, border, mask, sums, ids, counts)
PyObject* rank_planes(PyObject* const* values, Py_ssize_t count) {
    Arguments given(values, count, 14);
    Buffers held;
    ScorePlanes scores{};
    scores.count = given.integer();
    const int threads = int(given.integer());
    const int64_t k = given.integer();
    PyObject *every = given.object(), *some = given.object(), *tables = given.object();
    Py_ssize_t next = 0;
    for (PyObject* planes : {every, some}) {
        for (Py_ssize_t i = 0; i < PyList_Size(planes); ++i) {
            const float* table = held.hold<float>(PyList_GetItem(tables, next++), 16);
            const bool four_bits = held.buffers.back().len < 256 * int64_t(sizeof(float));
            const int64_t bytes = four_bits ? (scores.count + 1) / 2 : scores.count;
            const uint8_t* numbers = held.hold<uint8_t>(PyList_GetItem(planes, i), bytes);
            (planes == every ? scores.every : scores.some).emplace_back(numbers, table, four_bits);
        }
    }
    scores.prepare();
    scores.codes.size = int(given.integer());
    scores.codes.bytes = given.buffer<const uint8_t>(scores.count * scores.codes.size);
    scores.tables = given.buffer<const float>(scores.codes.size * 256);
    const float border = *given.buffer<const float>(1);
    scores.mask = given.optional<const bool>(scores.count);
    float* sums = given.buffer<float>(k);
    int64_t* ids = given.buffer<int64_t>(k);
    int64_t* counts = given.buffer<int64_t>(2);
    return run([&] { hyphash::search_planes(scores, k, border, threads, sums, ids, counts); });
}

// ---- the index --------------------------------------------------------------------------------------------------

// A snapshot of an index as a Python object. It holds on to the buffers, so it outlives appends and deletions.
struct Snapshot : Buffers {
    IndexView view{};

    static constexpr const char* NAME = "hyphash.hamming.snapshot";
};

int64_t number_in(PyObject* tuple, Py_ssize_t place) {
    PyObject* item = PyTuple_GetItem(tuple, place);
    const long long value = item ? PyLong_AsLongLong(item) : -1;
    if (value == -1 && PyErr_Occurred()) throw PythonError();
    return value;
}

int64_t directory_length(int bits, int tables) {
    int64_t sum = 0;
    for (int t = 0; t < tables; ++t) sum += (int64_t(1) << Substring(bits, tables, t).width) + 1;
    return sum;
}

// One segment from (tables, first id, codes, distinct, stride, directories, entries, starts, ids, rows)
Segment segment_from(Snapshot& snapshot, int bits, PyObject* tuple) {
    Segment s{};
    s.bits = bits;
    s.tables = int(number_in(tuple, 0));
    s.first_id = number_in(tuple, 1);
    s.codes = number_in(tuple, 2);
    s.distinct = number_in(tuple, 3);
    s.stride = number_in(tuple, 4);
    const Entry entry = entry_for(bits, s.tables);
    auto section = [&](Py_ssize_t place) { return PyTuple_GetItem(tuple, place); };
    s.directories = snapshot.hold<uint32_t>(section(5), directory_length(bits, s.tables));
    s.entries = snapshot.hold<uint8_t>(section(6), s.stride * s.tables * entry_bytes(entry));
    s.starts = snapshot.hold<uint32_t>(section(7), entry == Entry::none ? 0 : s.distinct * s.tables);
    s.ids = snapshot.hold<uint32_t>(section(8), s.codes);
    s.rows = snapshot.hold<uint8_t>(section(9), s.codes * bytes_for(bits));
    return s;
}

// snapshot(bits, segments, tail, id of the tail's first code, whether never to scan segments)
PyObject* snapshot(PyObject* const* values, Py_ssize_t count) {
    Arguments given(values, count, 5);
    auto made = std::make_unique<Snapshot>();
    IndexView& view = made->view;
    view.bits = int(given.integer());
    PyObject* segments = given.object();
    for (Py_ssize_t i = 0; i < PyList_Size(segments); ++i) {
        view.segments.push_back(segment_from(*made, view.bits, PyList_GetItem(segments, i)));
    }
    view.tail.size = bytes_for(view.bits);
    view.tail.bytes = made->hold<uint8_t>(given.object(), 0);
    view.tail.count = made->buffers.back().len / view.tail.size;
    view.tail_id = given.integer();
    view.never_scan = given.integer() != 0;
    PyObject* capsule = PyCapsule_New(made.get(), Snapshot::NAME, [](PyObject* self) {
        delete static_cast<Snapshot*>(PyCapsule_GetPointer(self, Snapshot::NAME));
    });
    if (capsule) made.release();
    return capsule;
}

// search_snapshot(snapshot, threads, k, queries, mask, distances, ids)
PyObject* search_snapshot(PyObject* const* values, Py_ssize_t count) {
    Arguments given(values, count, 7);
    const auto* made = static_cast<const Snapshot*>(PyCapsule_GetPointer(given.object(), Snapshot::NAME));
    if (!made) throw PythonError();
    const IndexView& view = made->view;
    const int threads = int(given.integer());
    const int64_t k = given.integer();
    const Rows queries = given.rows(bytes_for(view.bits));
    const bool* mask = given.optional<const bool>(view.tail_id + view.tail.count);
    int32_t* distances = given.buffer<int32_t>(queries.count * k);
    int64_t* ids = given.buffer<int64_t>(queries.count * k);
    return run([&] { search_index(instructions(), view, queries, mask, k, threads, distances, ids); });
}

// sort_codes(bits, tables, threads, codes, order, words) → number of distinct codes
PyObject* sort_codes(PyObject* const* values, Py_ssize_t count) {
    Arguments given(values, count, 6);
    const int bits = int(given.integer()), tables = int(given.integer()), threads = int(given.integer());
    const Rows codes = given.rows(bytes_for(bits));
    uint32_t* order = given.buffer<uint32_t>(codes.count);
    uint64_t* words = given.buffer<uint64_t>(bits <= 64 ? codes.count : 0);
    int64_t distinct = 0;
    Py_XDECREF(run([&] {
        distinct = hyphash::sort_codes(codes, bits, tables, threads, order, bits <= 64 ? words : nullptr);
    }));
    return PyLong_FromLongLong(distinct);
}

// fill_tables(bits, tables, threads, distinct, stride, codes, ids, words, directories, entries, starts)
PyObject* fill_tables(PyObject* const* values, Py_ssize_t count) {
    Arguments given(values, count, 11);
    Segment s{};
    s.bits = int(given.integer());
    s.tables = int(given.integer());
    const int threads = int(given.integer());
    s.distinct = given.integer();
    s.stride = given.integer();
    const Entry entry = entry_for(s.bits, s.tables);
    const Rows codes = given.rows(bytes_for(s.bits));
    s.codes = codes.count;
    uint32_t* ids = given.buffer<uint32_t>(codes.count);
    const uint64_t* words = given.buffer<const uint64_t>(s.bits <= 64 ? codes.count : 0);
    uint32_t* directories = given.buffer<uint32_t>(directory_length(s.bits, s.tables));
    s.directories = directories;
    uint8_t* entries = given.buffer<uint8_t>(s.stride * s.tables * entry_bytes(entry));
    uint32_t* starts = given.buffer<uint32_t>(entry == Entry::none ? 0 : s.distinct * s.tables);
    return run([&] {
        hyphash::fill_tables(codes, s.bits <= 64 ? words : nullptr, s, threads, directories, entries, starts, ids);
    });
}

// available() → names of the instructions that this processor has, the fastest first
PyObject* available_names(PyObject* const* values, Py_ssize_t count) {
    const Arguments given(values, count, 0);
    PyObject* names = PyList_New(0);
    for (const Instructions* some : available()) {
        PyObject* name = PyUnicode_FromString(some->name);
        if (names && name) PyList_Append(names, name);
        Py_XDECREF(name);
    }
    return names;
}

// instructions() → name of those in use
PyObject* instructions_name(PyObject* const* values, Py_ssize_t count) {
    const Arguments given(values, count, 0);
    return PyUnicode_FromString(instructions().name);
}

// choose(name): use these instructions from now on, for tests and comparisons
PyObject* choose(PyObject* const* values, Py_ssize_t count) {
    const Arguments given(values, count, 1);
    const char* name = PyUnicode_AsUTF8AndSize(values[0], nullptr);
    if (!name) throw PythonError();
    for (const Instructions* some : available()) {
        if (std::strcmp(some->name, name)) continue;
        chosen = some;
        Py_INCREF(Py_None);
        return Py_None;
    }
    PyErr_Format(PyExc_ValueError, "this processor has no instructions %s", name);
    throw PythonError();
}

template <PyObject* (*call)(PyObject* const*, Py_ssize_t)>
PyMethodDef method(const char* name) {
    // The interpreter calls a METH_FASTCALL function by its true type again.
    return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(guarded<call>)), METH_FASTCALL, nullptr};
}

PyMethodDef methods[] = {
    method<search>("search"),
    method<count_within>("count_within"),
    method<histogram>("histogram"),
    method<search_tables>("search_tables"),
    method<rank_planes>("rank_planes"),
    method<snapshot>("snapshot"),
    method<search_snapshot>("search_snapshot"),
    method<sort_codes>("sort_codes"),
    method<fill_tables>("fill_tables"),
    method<available_names>("available"),
    method<instructions_name>("instructions"),
    method<choose>("choose"),
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef_Slot slots[] = {{0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "hyphash.hamming._kernel", nullptr, 0, methods, slots,
                          nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit__kernel() { return PyModuleDef_Init(&definition); }
