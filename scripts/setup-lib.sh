# shellcheck shell=bash
# Shared by scripts/demo, scripts/test, scripts/reproduce and .ci/run: packages and test summaries. Source it from the repository root.
#
# Each row is "Debian package: probe". Only rows whose probe fails are installed, so any system that has the tools and
# headers will do, and nothing calls a package manager when nothing is missing. A "wanted" package only makes things
# faster: it comes along when others are installed and is never asked for. Debian 12 and 13 and Ubuntu 22.04 and 24.04
# install by themselves; for Fedora, Arch and openSUSE the names are known, and the command is printed.

export LC_ALL=C.UTF-8

packages_of() {
  case $1 in
    build) echo 'g++: compiler 12
                 cmake: version 3.22 cmake
                 ninja-build: command ninja
                 libfmt-dev: header fmt/format.h
                 nlohmann-json3-dev: header nlohmann/json.hpp
                 libcli11-dev: header CLI/CLI.hpp
                 libxxhash-dev: header xxhash.h
                 libutf8proc-dev: header utf8proc.h
                 libncurses-dev: header curses.h
                 libboost-dev: header boost/beast.hpp
                 libedit-dev: header histedit.h
                 ccache: wanted ccache' ;;
    test) echo 'libgtest-dev: header gtest/gtest.h
                libgmock-dev: header gmock/gmock.h
                python3: command python3
                libopenmpi-dev: mpi mpicxx
                openmpi-bin: mpi mpirun' ;;
    lint) echo 'git: command git
                clang-format-14: formatter 14
                shellcheck: command shellcheck' ;;
    report) echo 'python3: command python3
                  python3-matplotlib: module matplotlib' ;;
    arm64) echo 'cmake: version 3.22 cmake
                 ninja-build: command ninja
                 python3: command python3
                 g++-aarch64-linux-gnu: command aarch64-linux-gnu-g++
                 qemu-user-static: command qemu-aarch64-static' ;;
    package) echo 'dpkg-dev: command dpkg-shlibdeps
                   file: command file
                   pkg-config: command pkg-config
                   python3: command python3' ;;
    hip) echo 'clang-19: command clang++-19
               lld-19: command ld.lld-19
               clang-tools-19: command clang-offload-bundler-19
               libamdhip64-dev: file /usr/include/hip/hip_runtime.h
               rocm-device-libs: file /usr/lib/x86_64-linux-gnu/amdgcn/bitcode/ocml.bc' ;;
    newest) newest_clang | sed -n 's/..*/clang-&: command clang++-&/p' ;;
  esac
}

# Other names than Debian 12's: "system: name". A name of - is not among the system's packages.
other_names() {
  case $1 in
    g++) echo 'ubuntu-22.04: g++-12 fedora: gcc-c++ arch: gcc suse: gcc-c++' ;;
    ninja-build) echo 'arch: ninja suse: ninja' ;;
    libfmt-dev) echo 'fedora: fmt-devel arch: fmt suse: fmt-devel' ;;
    nlohmann-json3-dev) echo 'fedora: json-devel arch: nlohmann-json suse: nlohmann_json-devel' ;;
    libcli11-dev) echo 'fedora: cli11-devel arch: cli11 suse: cli11-devel' ;;
    libxxhash-dev) echo 'fedora: xxhash-devel arch: xxhash suse: xxhash-devel' ;;
    libutf8proc-dev) echo 'fedora: utf8proc-devel arch: libutf8proc suse: utf8proc-devel' ;;
    libncurses-dev) echo 'fedora: ncurses-devel arch: ncurses suse: ncurses-devel' ;;
    libboost-dev) echo 'fedora: boost-devel arch: boost suse: libboost_headers-devel' ;;
    libedit-dev) echo 'fedora: libedit-devel arch: libedit suse: libedit-devel' ;;
    libgtest-dev) echo 'fedora: gtest-devel arch: gtest suse: gtest' ;;
    libgmock-dev) echo 'fedora: gmock-devel arch: gtest suse: gmock' ;;
    dpkg-dev) echo 'fedora: - arch: dpkg suse: dpkg' ;;
    pkg-config) echo 'fedora: pkgconf arch: pkgconf' ;;
    python3) echo 'arch: python' ;;
    libopenmpi-dev) echo 'fedora: openmpi-devel arch: openmpi suse: openmpi4-devel' ;;
    openmpi-bin) echo 'fedora: openmpi arch: openmpi suse: openmpi4' ;;
    clang-format-14) echo 'debian-13: - fedora: - arch: - suse: -' ;;
    shellcheck) echo 'fedora: ShellCheck suse: ShellCheck' ;;
    python3-matplotlib) echo 'arch: python-matplotlib' ;;
    g++-aarch64-linux-gnu | qemu-user-static) echo 'fedora: - arch: - suse: -' ;;
    clang-19) echo 'ubuntu-22.04: - fedora: clang arch: clang suse: clang19' ;;
    lld-19) echo 'ubuntu-22.04: - fedora: lld arch: lld suse: lld19' ;;
    clang-tools-19) echo 'ubuntu-22.04: - fedora: clang-tools-extra arch: clang suse: -' ;;
    rocm-device-libs) echo 'ubuntu-22.04: - suse: -' ;;
    libamdhip64-dev) echo 'ubuntu-22.04: - fedora: rocm-hip-devel arch: hip-runtime-amd suse: -' ;;
  esac
}

# system: debian-12, ubuntu-24.04, fedora, arch, suse, or other. What derives from Debian or Ubuntu has their names.
system() {
  local id version like base
  field() { sed -n "s/^$1=//p" "${RIDGE_OS_RELEASE:-/etc/os-release}" 2> /dev/null | tr -d "\"'"; }
  id=$(field ID) version=$(field VERSION_ID) like=$(field ID_LIKE) base=$(field UBUNTU_CODENAME)
  case " $id $like " in
    ' debian '* | ' ubuntu '*) echo "$id-$version" ;;
    *' ubuntu '*) [ "$base" = jammy ] && echo ubuntu-22.04 || echo ubuntu-24.04 ;;
    *' debian '*) echo debian-12 ;;
    *' fedora '* | *' rhel '*) echo fedora ;;
    *' arch '*) echo arch ;;
    *' suse '* | *' opensuse '*) echo suse ;;
    *) echo other ;;
  esac
}

# name_here PACKAGE SYSTEM: its name there.
name_here() {
  local key name
  while read -r key name; do
    if [ "$key" = "$2:" ]; then echo "$name" && return; fi
  done < <(other_names "$1" | sed 's/ \([a-z0-9.-]*:\)/\n\1/g')
  echo "$1"
}

# newest_clang: the version of the newest clang that is installed or that apt offers; nothing where there is none.
newest_clang() {
  { compgen -c clang++- || true
    if command -v apt-cache > /dev/null; then apt-cache search --names-only '^clang-[0-9]+$' 2> /dev/null || true; fi; } |
    sed -nE 's/^clang(\+\+)?-([0-9]+)( .*)?$/\2/p' | sort -n | tail -n 1
}

# new_enough COMPILER: g++ of 12 or later, clang of 14 or later.
new_enough() {
  printf '#if (defined __clang__ && __clang_major__ < 14) || (!defined __clang__ && __GNUC__ < 12)\n#error old\n#endif\n' |
    "$1" -x c++ -E -o /dev/null - 2> /dev/null
}

# compiler: the compiler of the environment or the system's, or else the newest g++ or clang that will do.
compiler() {
  local name
  for name in "${CXX:-c++}" g++-{20..12} clang++-{30..14}; do
    if command -v "$name" > /dev/null && new_enough "$name"; then echo "$name" && return; fi
  done
  return 1
}

# at_least MINIMUM VERSION: by numbers between dots.
at_least() { printf '%s\n%s\n' "$1" "$2" | sort -V -C; }

probe() {
  case $1 in
    command | wanted) command -v "$2" > /dev/null ;;
    compiler) compiler > /dev/null ;;
    version) command -v "$3" > /dev/null && at_least "$2" "$("$3" --version | sed -n '1s/[^0-9]*\([0-9.]*\).*/\1/p')" ;;
    formatter) command -v "clang-format-$2" > /dev/null || clang-format --version 2> /dev/null | grep -q "version $2\." ;;
    mpi) command -v "$2" > /dev/null || compgen -G "/usr/lib*/*mpi*/bin/$2" > /dev/null ||
      compgen -G "/usr/lib*/mpi/*/*mpi*/bin/$2" > /dev/null ;;
    file) [ -e "$2" ] ;;
    module) python3 -c "import $2" 2> /dev/null || /usr/bin/python3 -c "import $2" 2> /dev/null ;;
    header) printf '#include <%s>\n' "$2" | "$(compiler || echo c++)" -std=c++20 -x c++ -E -o /dev/null - 2> /dev/null ;;
  esac
}

# missing_packages required|wanted GROUP...: the packages of the groups whose probe fails, by their names here, each once.
missing_packages() {
  local group package kind what need=$1 here
  shift
  here=$(system)
  for group in "$@"; do
    while read -r package kind what; do
      case $need:$kind in wanted:wanted) ;; wanted:* | required:wanted) continue ;; esac
      # shellcheck disable=SC2086 # probes of two words
      if ! probe "$kind" $what; then name_here "${package%:}" "$here"; fi
    done < <(packages_of "$group")
  done | awk '$0 != "-" && !seen[$0]++'
}

# unknown_packages GROUP...: Debian names of what is missing and not among this system's packages.
unknown_packages() {
  local group package kind what here
  here=$(system)
  for group in "$@"; do
    while read -r package kind what; do
      # shellcheck disable=SC2086
      if [ "$(name_here "${package%:}" "$here")" = - ] && ! probe "$kind" $what; then echo "${package%:}"; fi
    done < <(packages_of "$group")
  done
}

# install_command: what installs packages on this system, as root.
install_command() {
  case $(system) in
    debian-* | ubuntu-*) echo 'apt-get update && apt-get install -y --no-install-recommends' ;;
    fedora) echo 'dnf install -y' ;;
    arch) echo 'pacman -S --needed' ;;
    suse) echo 'zypper install -y' ;;
    other) echo 'install these packages (Debian names):' ;;
  esac
}

can_install() {
  case $(system) in debian-* | ubuntu-*) ;; *) return 1 ;; esac
  command -v apt-get > /dev/null || return 1
  [ "$(id -u)" -eq 0 ] || sudo -n true 2> /dev/null || { [ -t 0 ] && command -v sudo > /dev/null; }
}

# need_packages GROUP...: installs what is missing, as root or through sudo; otherwise says how and exits 6. Afterwards CXX
# is set where c++ is too old.
need_packages() {
  local missing wanted unknown as_root=()
  mapfile -t missing < <(missing_packages required "$@")
  mapfile -t wanted < <(missing_packages wanted "$@")
  mapfile -t unknown < <(unknown_packages "$@")
  if [ ${#unknown[@]} -ne 0 ]; then
    echo "$0: not among the packages of $(system), install by hand (PyPI has clang-format 14.0.6): ${unknown[*]}" >&2
  fi
  if [ ${#missing[@]} -ne 0 ]; then
    if ! can_install; then
      echo "$0: packages are missing. As root, run:" >&2
      echo "  $(install_command) ${missing[*]}" >&2
      exit 6
    fi
    if [ "$(id -u)" -ne 0 ]; then as_root=(sudo); fi
    echo "$0: installing ${missing[*]} ${wanted[*]}"
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq update || true  # one dead mirror need not matter
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" \
      "${wanted[@]}" > /dev/null || true
    mapfile -t missing < <(missing_packages required "$@")
  fi
  if [ ${#missing[@]} -ne 0 ] || [ ${#unknown[@]} -ne 0 ]; then
    echo "$0: still missing: ${missing[*]} ${unknown[*]}" >&2
    exit 6
  fi
  if [ -z "${CXX:-}" ] && ! new_enough c++; then
    CXX=$(compiler)
    export CXX
  fi
}

# run_tests PRESET [OPTION...]: its ctest run, with a JUnit file for test_summary. Keeps ctest's exit status.
run_tests() {
  ctest --preset "$1" -j "$(nproc)" --output-junit "$PWD/build/$1/tests.xml" "${@:2}"
}

# test_summary PRESET: one line about the last run_tests of that preset.
test_summary() {
  sed -nE '/<testsuite/,/>/{s/.*\b(tests|failures|skipped|time)="([^"]*)".*/\1 \2/p}' "build/$1/tests.xml" |
    awk -v preset="$1" '{ value[$1] = $2 } END {
      printf "%s: %d tests, %d failed, %d skipped, %.0f s\n", preset, value["tests"], value["failures"], value["skipped"],
             value["time"] }'
}
