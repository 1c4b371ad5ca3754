// Inspects torch's modules through Python's C interface.
//
// Before every call, a model checks that its layers were not changed: some thousand look-ups in dictionaries, which in
// Python took a third of the time of the layers themselves for a short sentence.
#include "bindings.h"

#include <pybind11/stl.h>

#include <utility>
#include <vector>

namespace py = pybind11;

namespace fastbert {
namespace {

// The value under a name, borrowed, or null.
PyObject* look_up(PyObject* dict, PyObject* name) {
    PyObject* found = dict && PyDict_Check(dict) ? PyDict_GetItemWithError(dict, name) : nullptr;
    if (!found && PyErr_Occurred()) throw py::error_already_set();
    return found;
}

py::str interned(const py::handle& name) {
    if (!PyUnicode_CheckExact(name.ptr())) throw py::type_error("a name must be a string");
    PyObject* copy = name.inc_ref().ptr();
    PyUnicode_InternInPlace(&copy);
    return py::reinterpret_steal<py::str>(copy);
}

// What a module in a tree must be, and which of its tensors are collected.
struct Part {
    int64_t parent;  // the number of the part that it is a child of; -1 for the root
    py::str name;
    py::object type;
    std::vector<std::pair<py::str, py::object>> attributes;  // must have these values
    py::str store;                                           // "_parameters" or "_buffers"
    std::vector<py::str> tensors;
};

class ModuleWalk {
public:
    ModuleWalk(const py::list& parts, py::tuple tensor_types, const py::list& empty) : types_(std::move(tensor_types)) {
        for (const auto& item : parts) {
            const auto fields = item.cast<py::tuple>();
            Part part{fields[0].cast<int64_t>(), interned(fields[1]), fields[2], {}, interned(fields[4]), {}};
            if (part.parent >= int64_t(parts_.size())) throw std::invalid_argument("a part comes after its parent");
            for (const auto& [name, value] : fields[3].cast<py::dict>())
                part.attributes.emplace_back(interned(name), py::reinterpret_borrow<py::object>(value));
            for (const auto& name : fields[5]) part.tensors.push_back(interned(name));
            parts_.push_back(std::move(part));
        }
        for (const auto& name : empty) empty_.push_back(interned(name));
    }

    // The tensors of every root, part by part, as a list; `known` itself if it has the same ones. None if a module is not as it
    // must be.
    py::object collect(const py::list& roots, const py::list& known) const {
        std::vector<py::object> found, dicts(parts_.size());
        bool same = true;
        for (const auto& root : roots)
            for (size_t i = 0; i < parts_.size(); ++i) {
                PyObject* dict = own_dict(root.ptr(), parts_[i], dicts);
                if (!dict) return py::none();
                dicts[i] = py::reinterpret_steal<py::object>(dict);
                PyObject* store = parts_[i].tensors.empty() ? nullptr : look_up(dict, parts_[i].store.ptr());
                for (const py::str& name : parts_[i].tensors) {
                    PyObject* tensor = look_up(store, name.ptr());
                    if (!tensor || !is_plain(tensor)) return py::none();
                    const Py_ssize_t place = Py_ssize_t(found.size());
                    same = same && place < PyList_GET_SIZE(known.ptr()) && PyList_GET_ITEM(known.ptr(), place) == tensor;
                    found.push_back(py::reinterpret_borrow<py::object>(tensor));
                }
            }
        if (same && found.size() == known.size()) return known;
        py::list result(found.size());
        for (size_t i = 0; i < found.size(); ++i) result[i] = std::move(found[i]);
        return result;
    }

private:
    struct Names {
        py::str modules = interned(py::str("_modules")), forward = interned(py::str("forward"));
    };
    static const Names& names() {
        static const Names* const all = new Names;  // Python may be gone before the destructors of statics run
        return *all;
    }

    bool is_plain(PyObject* tensor) const {
        for (const auto& type : types_)
            if (type.ptr() == reinterpret_cast<PyObject*>(Py_TYPE(tensor))) return true;
        return false;
    }

    // A new reference to the attributes of the module that a part stands for, or null where it is another one.
    PyObject* own_dict(PyObject* root, const Part& part, const std::vector<py::object>& dicts) const {
        PyObject* module =
            part.parent < 0 ? root : look_up(look_up(dicts[size_t(part.parent)].ptr(), names().modules.ptr()), part.name.ptr());
        if (!module || reinterpret_cast<PyObject*>(Py_TYPE(module)) != part.type.ptr()) return nullptr;
        PyObject* dict = PyObject_GenericGetDict(module, nullptr);
        if (!dict) throw py::error_already_set();
        auto held = py::reinterpret_steal<py::object>(dict);
        if (look_up(dict, names().forward.ptr())) return nullptr;
        for (const py::str& name : empty_) {
            PyObject* value = look_up(dict, name.ptr());
            if (!value || !PyDict_Check(value) || PyDict_Size(value) != 0) return nullptr;
        }
        for (const auto& [name, expected] : part.attributes) {
            PyObject* value = look_up(dict, name.ptr());
            const int equal = value ? PyObject_RichCompareBool(value, expected.ptr(), Py_EQ) : 0;
            if (equal < 0) throw py::error_already_set();
            if (!equal) return nullptr;
        }
        return held.release().ptr();
    }

    std::vector<Part> parts_;
    py::tuple types_;
    std::vector<py::str> empty_;
};

}  // namespace

void bind_modules(py::module_& m) {
    py::class_<ModuleWalk>(m, "ModuleWalk", "Looks whether trees of torch modules are as expected, and collects tensors.")
        .def(py::init<const py::list&, py::tuple, const py::list&>(), py::arg("parts"), py::arg("tensor_types"),
             py::arg("empty"),
             "parts: (number of the parent or -1, name in it, type, attributes and their values, \"_parameters\" or "
             "\"_buffers\", names of tensors) each; tensor_types: the classes that a tensor may be of; empty: dictionaries "
             "of every module that must be.")
        .def("collect", &ModuleWalk::collect, py::arg("roots"), py::arg("known"),
             "The tensors of all roots, `known` itself where it holds the same ones; None where a module has another type, "
             "a forward of its own, something in a dictionary of `empty`, another attribute, or lacks a tensor.");
}

}  // namespace fastbert
