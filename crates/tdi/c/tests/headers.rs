//! The headers, compared with those of Windows' driver kit that others have written, and with the structures in Rust.

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs,
    mem::offset_of,
    process::Command,
};

use common::{available, check_with_driver_kit, compile, options, source};
use smbdirect_tdi_c::layout::{self, EaHeader};

/// The headers with constants.
const HEADERS: [&str; 5] = ["wdm.h", "ntstatus.h", "tdi.h", "tdikrnl.h", "tdistat.h"];
/// Names that are not constants, or that the driver kit does not have: those of this package's own.
const NOT_COMPARED: [&str; 10] = [
    "IoCallDriver",
    "IoCompleteRequest",
    "ObReferenceObject",
    "ObDereferenceObject",
    "TdiTransportAddress",
    "TdiConnectionContext",
    "NTAPI",
    "TDI_DEST_UNREACHABLE",
    "KdPrint",
    "VOID",
];

/// Compiles a program against this package's headers, and returns what it prints.
fn printed(folder: &std::path::Path, name: &str, text: &str) -> String {
    let file = folder.join(format!("{name}.c"));
    let program = folder.join(name);
    fs::write(&file, text).unwrap();
    let mut arguments = options();
    let place = source().join("tests/c").display().to_string();
    arguments.extend(["-I".to_owned(), place, file.display().to_string()]);
    // The program of the layouts has functions of clients that are linked, but not called.
    let libraries = common::libraries().display().to_string();
    arguments.extend([
        "-L".to_owned(),
        libraries.clone(),
        "-lsmbdirect_tdi_c".to_owned(),
    ]);
    arguments.extend(["-o".to_owned(), program.display().to_string()]);
    compile("cc", &arguments);
    let output = Command::new(program)
        .env("LD_LIBRARY_PATH", libraries)
        .output()
        .unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the names of the constants that the headers define.
fn constants() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for header in HEADERS {
        let text = fs::read_to_string(source().join("include").join(header)).unwrap();
        for line in text.lines() {
            let Some(rest) = line.strip_prefix("#define ") else {
                continue;
            };
            let Some((name, value)) = rest.split_once(' ') else {
                continue;
            };
            let is_constant = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            let is_compared = !NOT_COMPARED.contains(&name) && !value.is_empty();
            if is_constant && is_compared {
                names.insert(name.to_owned());
            }
        }
    }
    names
}

//= TDI-STATUS-01 test
//= TDI-FLAGS-01 test
#[test]
fn constants_are_those_of_windows() {
    if !available("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let names = constants();
    assert!(names.len() > 200, "{}", names.len());
    let mut program =
        "#include <ntddk.h>\n#include <stdio.h>\n#include <tdikrnl.h>\nint main(void) {\n"
            .to_owned();
    for name in &names {
        writeln!(program, "printf(\"{name} %u\\n\", (unsigned)({name}));").unwrap();
    }
    program += "return 0;\n}\n";
    let values = printed(folder.path(), "constants", &program);
    let mut check = "#include <ntddk.h>\n#include <tdikrnl.h>\n".to_owned();
    for line in values.lines() {
        let (name, value) = line.split_once(' ').unwrap();
        writeln!(
            check,
            "_Static_assert((unsigned)({name}) == {value}u, \"{name}\");"
        )
        .unwrap();
    }
    let file = folder.path().join("check.c");
    fs::write(&file, check).unwrap();
    check_with_driver_kit(&file);
}

/// Returns the offset and the size of each field, and the size of each structure as that of the field `-`.
fn layouts() -> BTreeMap<(String, String), (usize, usize)> {
    let folder = tempfile::tempdir().unwrap();
    let text = fs::read_to_string(source().join("tests/c/layout.c")).unwrap();
    let lines = printed(folder.path(), "layouts", &text);
    let parse = |line: &str| {
        let words: Vec<_> = line.split(' ').collect();
        let place = (words[0].to_owned(), words[1].to_owned());
        (
            place,
            (words[2].parse().unwrap(), words[3].parse().unwrap()),
        )
    };
    lines.lines().map(parse).collect()
}

#[test]
fn structures_are_those_of_windows() {
    if !available("cc") {
        return;
    }
    let mut check = "#include <ntddk.h>\n#include <stddef.h>\n#include <tdikrnl.h>\n".to_owned();
    for ((kind, field), (offset, size)) in layouts() {
        if field == "-" {
            writeln!(
                check,
                "_Static_assert(sizeof({kind}) == {size}, \"{kind}\");"
            )
            .unwrap();
        } else {
            writeln!(
                check,
                "_Static_assert(offsetof({kind}, {field}) == {offset} && \
                 sizeof((({kind} *)0)->{field}) == {size}, \"{kind}.{field}\");"
            )
            .unwrap();
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("check.c");
    fs::write(&file, check).unwrap();
    check_with_driver_kit(&file);
}

/// Compares the offsets of the fields, and the size, of a structure in Rust with those in C.
macro_rules! compare {
    ($layouts:ident, $c:literal, $rust:ident, $($field:ident = $name:literal),+) => {
        let size = $layouts.get(&($c.to_owned(), "-".to_owned()));
        if let Some((_, size)) = size {
            assert_eq!(size_of::<layout::$rust>(), *size, $c);
        }
        $({
            let place = ($c.to_owned(), $name.to_owned());
            let expected = $layouts[&place].0;
            assert_eq!(offset_of!(layout::$rust, $field), expected, "{}.{}", $c, $name);
        })+
    };
}

#[test]
fn structures_in_rust_are_those_of_the_headers() {
    if !available("cc") {
        return;
    }
    let layouts = layouts();
    compare!(
        layouts,
        "IRP",
        Irp,
        kind = "Type",
        size = "Size",
        mdl_address = "MdlAddress",
        io_status = "IoStatus",
        stack_count = "StackCount",
        current_location = "CurrentLocation",
        cancel = "Cancel",
        allocation_flags = "AllocationFlags",
        user_iosb = "UserIosb",
        user_event = "UserEvent",
        cancel_routine = "CancelRoutine",
        current_stack_location = "Tail.Overlay.CurrentStackLocation"
    );
    compare!(
        layouts,
        "IO_STACK_LOCATION",
        IoStackLocation,
        major_function = "MajorFunction",
        minor_function = "MinorFunction",
        control = "Control",
        parameters = "Parameters",
        device_object = "DeviceObject",
        file_object = "FileObject",
        completion_routine = "CompletionRoutine",
        context = "Context"
    );
    compare!(
        layouts,
        "MDL",
        Mdl,
        next = "Next",
        size = "Size",
        flags = "MdlFlags",
        mapped_system_va = "MappedSystemVa",
        start_va = "StartVa",
        byte_count = "ByteCount",
        byte_offset = "ByteOffset"
    );
    compare!(
        layouts,
        "KEVENT",
        KEvent,
        signal_state = "Header.SignalState",
        wait_list_head = "Header.WaitListHead"
    );
    compare!(
        layouts,
        "KTIMER",
        KTimer,
        header = "Header",
        dpc = "Dpc",
        period = "Period"
    );
    compare!(
        layouts,
        "KDPC",
        KDpc,
        deferred_routine = "DeferredRoutine",
        deferred_context = "DeferredContext",
        system_argument1 = "SystemArgument1",
        system_argument2 = "SystemArgument2"
    );
    compare!(
        layouts,
        "WORK_QUEUE_ITEM",
        WorkQueueItem,
        worker_routine = "WorkerRoutine",
        parameter = "Parameter"
    );
    compare!(
        layouts,
        "IO_STATUS_BLOCK",
        IoStatusBlock,
        status = "Status",
        information = "Information"
    );
    compare!(
        layouts,
        "DEVICE_OBJECT",
        DeviceObject,
        device_type = "DeviceType",
        stack_size = "StackSize"
    );
    compare!(
        layouts,
        "FILE_OBJECT",
        FileObject,
        device_object = "DeviceObject",
        fs_context2 = "FsContext2"
    );
    compare!(
        layouts,
        "UNICODE_STRING",
        UnicodeString,
        length = "Length",
        buffer = "Buffer"
    );
    compare!(
        layouts,
        "OBJECT_ATTRIBUTES",
        ObjectAttributes,
        object_name = "ObjectName"
    );
    compare!(
        layouts,
        "TDI_CONNECTION_INFORMATION",
        ConnectionInformation,
        user_data_length = "UserDataLength",
        options_length = "OptionsLength",
        remote_address_length = "RemoteAddressLength",
        remote_address = "RemoteAddress"
    );
    compare!(
        layouts,
        "TDI_REQUEST_KERNEL",
        RequestKernel,
        flags = "RequestFlags",
        request_connection_information = "RequestConnectionInformation",
        return_connection_information = "ReturnConnectionInformation",
        specific = "RequestSpecific"
    );
    compare!(
        layouts,
        "TDI_REQUEST_KERNEL_SEND",
        RequestData,
        length = "SendLength",
        flags = "SendFlags"
    );
    compare!(
        layouts,
        "TDI_REQUEST_KERNEL_RECEIVE",
        RequestData,
        length = "ReceiveLength",
        flags = "ReceiveFlags"
    );
    compare!(
        layouts,
        "TDI_REQUEST_KERNEL_SET_EVENT",
        RequestSetEvent,
        event_type = "EventType",
        handler = "EventHandler",
        context = "EventContext"
    );
    compare!(
        layouts,
        "TDI_REQUEST_KERNEL_QUERY_INFORMATION",
        RequestQuery,
        query_type = "QueryType",
        request_connection_information = "RequestConnectionInformation"
    );
    // The name, which has any length, follows the header.
    for (offset, field) in [
        (offset_of!(EaHeader, next_entry_offset), "NextEntryOffset"),
        (offset_of!(EaHeader, flags), "Flags"),
        (offset_of!(EaHeader, name_length), "EaNameLength"),
        (offset_of!(EaHeader, value_length), "EaValueLength"),
        (size_of::<EaHeader>(), "EaName"),
    ] {
        let place = ("FILE_FULL_EA_INFORMATION".to_owned(), field.to_owned());
        assert_eq!(offset, layouts[&place].0, "{field}");
    }
}

#[test]
fn each_header_compiles_by_itself() {
    if !available("cc") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for header in [
        "ntdef.h",
        "ntstatus.h",
        "wdm.h",
        "ntddk.h",
        "ntifs.h",
        "tdistat.h",
        "tdi.h",
        "tdikrnl.h",
    ] {
        for (compiler, suffix) in [("cc", "c"), ("c++", "cpp")] {
            if !available(compiler) {
                continue;
            }
            let file = folder.path().join(format!("one.{suffix}"));
            fs::write(&file, format!("#include <{header}>\n#include <{header}>\n")).unwrap();
            let mut arguments = options();
            if suffix == "cpp" {
                // A client in C++ may have a newer standard, which deprecates some uses of `volatile`.
                arguments.retain(|option| option != "-std=c11");
                arguments.push("-std=c++20".to_owned());
            }
            arguments.extend(["-fsyntax-only".to_owned(), file.display().to_string()]);
            compile(compiler, arguments);
        }
    }
}

/// Returns the functions that the headers declare, and the variables.
fn declared() -> BTreeSet<String> {
    let mut names = BTreeSet::from(["IoFileObjectType", "PsThreadType"].map(str::to_owned));
    for header in HEADERS {
        let text = fs::read_to_string(source().join("include").join(header)).unwrap();
        for rest in text.split(" NTAPI ").skip(1) {
            let (name, _) = rest.split_once('(').unwrap();
            names.insert(name.to_owned());
        }
    }
    names
}

/// The library that is installed exports the names of its map.
#[test]
fn library_has_the_functions_of_the_headers_and_no_others() {
    let names = declared();
    assert!(names.len() > 30, "{names:?}");
    let symbols: String = names.iter().map(|name| format!("    {name};\n")).collect();
    let map = fs::read_to_string(source().join("smbdirect-tdi.map")).unwrap();
    assert_eq!(
        map,
        format!("SMBDIRECT_TDI_0 {{\n  global:\n{symbols}  local:\n    *;\n}};\n")
    );
    if !available("nm") {
        return;
    }
    let library = common::libraries().join("libsmbdirect_tdi_c.so");
    let output = Command::new("nm")
        .args(["-D", "--defined-only"])
        .arg(library)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let exported = text.lines().filter_map(|line| line.rsplit(' ').next());
    assert_eq!(exported.map(str::to_owned).collect::<BTreeSet<_>>(), names);
}
