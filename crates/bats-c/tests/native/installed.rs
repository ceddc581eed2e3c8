//! Tests of the installed files: libraries, headers, and packages for pkg-config and CMake.

use std::collections::BTreeSet;
use std::process::Command;

use crate::support::*;

/// A program for the original SDK, compiled with each of the two include paths that its users have.
#[test]
fn programs_of_the_original_sdk_compile_and_link_unchanged() {
    let prefix = prefix();
    let main = "int main() {\n  IOContext context;\n  BatsConfiguration config;\n  \
                config.SetMode(TransMode::BRTP);\n  BatsProtocol protocol(context, config);\n  \
                protocol.StopConnection(nullptr);\n  octetVec data{1};\n  \
                assert(data.size() == 1);\n  return TRANSPARENT;\n}\n";
    for (number, (include, header)) in
        [(".", "include/cpp/bats_protocol.h"), ("include/cpp", "bats_protocol.h")]
            .into_iter()
            .enumerate()
    {
        let source = scratch().join(format!("original{number}.cpp"));
        std::fs::write(&source, format!("#include \"{header}\"\n{main}")).unwrap();
        let program = scratch().join(format!("original{number}"));
        let mut command = Command::new("g++");
        command.arg("-std=c++17").arg("-I").arg(prefix.join(include)).arg(&source);
        command.arg(prefix.join("lib/libbats_protocol_library.a")).args(["-lpthread", "-ldl"]);
        run(command.arg("-o").arg(&program));
        run(&mut Command::new(&program));
        // The program does not need the shared library at run time.
        let needed = text(&run(Command::new("readelf").arg("-d").arg(&program)));
        assert!(!needed.contains("libopenbats"), "{needed}");
    }
}

/// Programs that rely on what the original's headers include and declare.
#[test]
fn sources_that_rely_on_the_originals_headers_compile() {
    // (header, body): nothing else is included.
    let programs = [
        ("cpp/bats_config.h", "int main() { std::cout << std::string(\"x\") << std::endl; }"),
        (
            "cpp/bats_config.h",
            "using octet = unsigned char;\nint main() { octet one = 1; \
          octetVec data{one}; octVecIter i = data.begin(); octVecConstIter c = data.cbegin(); \
          assert(*i == *c); return sizeof(uint8_t) - 1; }",
        ),
        // `std::byte` must stay usable with a using directive.
        (
            "cpp/bats_config.h",
            "using namespace std;\nint main() { byte b{1}; return to_integer<int>(b) - 1; }",
        ),
        (
            "cpp/bats_config.h",
            "#include <type_traits>\nint main() { const BatsConfiguration config; \
          static_assert(std::is_same<decltype(config.GetImpl()), const BatsConfigImpl&>::value, \"\"); \
          static_assert(!std::is_polymorphic<BatsConfiguration>::value, \"\"); \
          static_assert(!std::has_virtual_destructor<BatsConfiguration>::value, \"\"); \
          const auto& implementation = config.GetImpl(); (void)implementation; std::cerr << config; }",
        ),
        (
            "cpp/bats_connection.h",
            "int main() { std::vector<IBatsConnPtr> all(2, nullptr); \
          std::function<bool()> f = [&] { return all[0] == nullptr; }; std::cout << f(); \
          const octet* data = nullptr; (void)data; }",
        ),
        (
            "cpp/bats_iocontext.h",
            "int main() { char text[4]; memset(text, 0, sizeof text); \
          std::memcpy(text, \"ab\", 2); std::string s = text; return strlen(text) - 2 + s.size() - 2; }",
        ),
        (
            "cpp/bats_protocol.h",
            "class Client : public BatsProtocol {\n public:\n \
          using BatsProtocol::BatsProtocol;\n  bool Has() const { return impl_ != nullptr && &io_context_; }\n};\n\
          int main() { IOContext io; Client client(io); BatsProtocol copy = client; \
          std::shared_ptr<int> p = std::make_shared<int>(0); std::vector<int> v; \
          char c[2]; memset(c, 0, 2); std::cout << client.Has(); copy.StopConnection({}); return *p; }",
        ),
        (
            "cpp/bats_protocol.h",
            "int main() { auto f = &BatsConfiguration::SetTimeout; BatsConfiguration c; \
          (c.*f)(2000); c.SetCC(CongestionControl::BBR); c.SetFrameType(BATS_HEADER_V1); return TRANSPARENT; }",
        ),
        (
            "c/c_bats_types.h",
            "int main(void) { bool yes = true; uint16_t port = 0; struct bats_context_t* c = 0; \
          bats_context_handle_t h = c; return !(yes && !port && !h); }",
        ),
        (
            "c/c_bats_api.h",
            "static bats_context_handle_t (*make)() = bats_context_create;\n\
          static bats_config_handle_t (*config)() = bats_config_create;\n\
          int main(void) { bats_config_handle_t c = config(); bats_config_enable_compression(c, 0); \
          bats_config_destroy(c); return make == 0; }",
        ),
    ];
    for (number, (header, body)) in programs.into_iter().enumerate() {
        let is_c = header.starts_with("c/");
        let name = format!("transitive{number}.{}", if is_c { "c" } else { "cpp" });
        let (source, program) = (scratch().join(&name), scratch().join(format!("{name}.program")));
        std::fs::write(&source, format!("#include \"include/{header}\"\n{body}\n")).unwrap();
        let mut command = Command::new(if is_c { "gcc" } else { "g++" });
        command.arg(if is_c { "-std=c11" } else { "-std=c++17" }).arg("-I").arg(prefix());
        command.arg(&source).arg("-o").arg(&program);
        command.arg(prefix().join("lib/libbats_protocol_library.a"));
        run(command.args(["-lpthread", "-ldl", "-lm"]));
        run(&mut Command::new(&program));
    }
}

#[test]
fn a_pkg_config_consumer_builds_and_runs() {
    if !is_installed("pkg-config", "the pkg-config consumer") {
        return;
    }
    let prefix = prefix();
    let source = scratch().join("consumer.c");
    let main = "#include <c_bats_api.h>\n#include <openbats.h>\n#include <stdio.h>\n\
                int main(void) { puts(openbats_version()); return 0; }\n";
    std::fs::write(&source, main).unwrap();
    let flags = |options: &[&str]| {
        let mut command = Command::new("pkg-config");
        command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        text(&run(command.args(options).arg("openbats")))
    };
    let shared = flags(&["--cflags", "--libs"]);
    let fixed =
        flags(&["--cflags", "--libs", "--static"]).replace("-lopenbats", "-l:libopenbats.a");
    for (name, flags) in [("consumer-shared", shared), ("consumer-static", fixed)] {
        let program = scratch().join(name);
        let mut command = Command::new("gcc");
        command.arg(&source).arg("-o").arg(&program).args(flags.split_whitespace());
        run(command.arg(format!("-Wl,-rpath,{}", prefix.join("lib").display())));
        let output = text(&run(&mut Command::new(&program)));
        assert_eq!(output.trim(), env!("CARGO_PKG_VERSION"));
    }
}

#[test]
fn a_cmake_consumer_builds_and_runs() {
    if !is_installed("cmake", "the CMake consumer") {
        return;
    }
    let project = scratch().join("cmake");
    let _ = std::fs::remove_dir_all(&project);
    std::fs::create_dir_all(&project).unwrap();
    let lists = "cmake_minimum_required(VERSION 3.13)\nproject(consumer CXX)\n\
                 set(CMAKE_CXX_STANDARD 17)\n\
                 find_package(bats 0.1 CONFIG REQUIRED)\nfind_package(openbats CONFIG REQUIRED)\n\
                 add_executable(shared main.cpp)\ntarget_link_libraries(shared bats::protocol)\n\
                 add_executable(fixed main.cpp)\n\
                 target_link_libraries(fixed bats::protocol_static)\n";
    std::fs::write(project.join("CMakeLists.txt"), lists).unwrap();
    let main = "#include \"include/cpp/bats_protocol.h\"\n#include <iostream>\n\
                int main() { BatsConfiguration config; std::cout << config << std::endl; }\n";
    std::fs::write(project.join("main.cpp"), main).unwrap();
    let build = project.join("build");
    let mut command = Command::new("cmake");
    command.arg("-S").arg(&project).arg("-B").arg(&build);
    run(command.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix().display())));
    run(Command::new("cmake").arg("--build").arg(&build));
    for program in ["shared", "fixed"] {
        let output = text(&run(&mut Command::new(build.join(program))));
        assert!(output.starts_with("mode 0 (BTP)"), "{output}");
    }
}

/// Names of functions that the headers declare.
pub(crate) fn declared() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for header in ["c_bats_api.h", "openbats.h"] {
        let text = std::fs::read_to_string(crate_dir().join("include/c").join(header)).unwrap();
        for (place, _) in text.match_indices('(') {
            let name: String = {
                let back = text[..place].chars().rev();
                let name: Vec<char> =
                    back.take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
                name.into_iter().rev().collect()
            };
            if name.starts_with("bats_") || name.starts_with("openbats_") {
                names.insert(name);
            }
        }
    }
    // Names with parentheses in comments of openbats.h are functions too.
    names
}

#[test]
fn the_library_exports_what_the_headers_declare_and_nothing_else() {
    let library = prefix().join("lib/libopenbats.so");
    let dynamic = text(&run(Command::new("readelf").arg("-dW").arg(&library)));
    assert!(dynamic.contains("Library soname: [libopenbats.so.0]"), "{dynamic}");
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&library));
    let mut exported = BTreeSet::new();
    for line in text(&symbols).lines() {
        let symbol = line.rsplit(' ').next().unwrap();
        if symbol != "OPENBATS_0" {
            let name = symbol.strip_suffix("@@OPENBATS_0");
            exported.insert(name.unwrap_or_else(|| panic!("{symbol} has no version")).to_owned());
        }
    }
    assert!(exported.len() > 40);
    // The symbols file of the Debian package must list the exported symbols.
    let list = std::fs::read_to_string(crate_dir().join("libopenbats0.symbols")).unwrap();
    let listed = list.lines().skip(1).map(|line| line.trim().split_once('@').unwrap().0.to_owned());
    let mut with_version = exported.clone();
    with_version.insert("OPENBATS_0".to_owned());
    assert_eq!(listed.collect::<BTreeSet<_>>(), with_version);
    assert_eq!(exported, declared());
}

/// A program may define functions of zstd and of the Rust runtime without a conflict.
#[test]
fn the_static_library_exports_only_its_interface() {
    let archive = prefix().join("lib/libopenbats.a");
    let symbols = run(Command::new("nm").args(["--extern-only", "--defined-only"]).arg(&archive));
    let exported: BTreeSet<_> = text(&symbols)
        .lines()
        .filter_map(|line| line.split_once(' ')?.1.split_once(' ').map(|(_, name)| name.to_owned()))
        .collect();
    assert_eq!(exported, declared());
    let source = scratch().join("own-zstd.c");
    let main = "#include <openbats.h>\n#include <c_bats_api.h>\n#include <stdio.h>\n\
                static int asked;\n\
                unsigned ZSTD_versionNumber(void) { ++asked; return 7; }\n\
                size_t ZSTD_compress(void) { ++asked; return 0; }\n\
                void *ZSTD_createCCtx(void) { ++asked; return NULL; }\n\
                size_t ZSTD_compress2(void) { ++asked; return 0; }\n\
                int ZSTD_isError(size_t code) { ++asked; return code != 0; }\n\
                void rust_eh_personality(void) {}\n\
                int main(void) {\n  bats_context_handle_t context = bats_context_create();\n  \
                bats_context_destroy(context);\n  \
                return context != NULL && ZSTD_versionNumber() == 7 && asked == 1 ? 0 : 1;\n}\n";
    std::fs::write(&source, main).unwrap();
    let program = scratch().join("own-zstd");
    let mut command = Command::new("gcc");
    command.arg("-I").arg(prefix().join("include/c")).arg("-o").arg(&program);
    command.arg(&source).arg(&archive).args(["-lpthread", "-ldl", "-lm"]);
    run(&mut command);
    run(&mut Command::new(&program));
}

#[test]
fn install_sdk_supports_a_system_prefix_with_destdir_and_rejects_bad_options() {
    let destination = scratch().join("destination");
    let _ = std::fs::remove_dir_all(&destination);
    let mut command = Command::new(crate_dir().join("install-sdk"));
    command.arg("--archive").arg(archive()).args(["--prefix", "/usr", "--layout", "system"]);
    command.args(["--libdir", "lib/x86_64-linux-gnu", "--destdir"]).arg(&destination);
    run(&mut command);
    for file in [
        "include/openbats/include/cpp/bats_protocol.h",
        "include/openbats/include/c/c_bats_api.h",
        "lib/x86_64-linux-gnu/libopenbats.so.0",
        "lib/x86_64-linux-gnu/libopenbats.a",
        "lib/x86_64-linux-gnu/cmake/bats/bats-config.cmake",
    ] {
        assert!(destination.join("usr").join(file).exists(), "{file}");
    }
    let package = destination.join("usr/lib/x86_64-linux-gnu/pkgconfig/openbats.pc");
    let package = std::fs::read_to_string(package).unwrap();
    assert!(package.contains("prefix=/usr\n"), "{package}");
    let mut wrong = Command::new(crate_dir().join("install-sdk"));
    assert!(!wrong.args(["--prefix", "relative"]).output().unwrap().status.success());
    let mut wrong = Command::new(crate_dir().join("install-sdk"));
    assert!(
        !wrong.args(["--prefix", "/tmp/x", "--layout", "none"]).output().unwrap().status.success()
    );
}
