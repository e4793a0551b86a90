# shellcheck shell=bash
# Shared by scripts/demo, scripts/test, scripts/reproduce and .ci/run: packages and test summaries. Source it from the repository root.
#
# Each row is "Debian package: probe". Only rows whose probe fails are installed, so any system that has the tools and
# headers will do, and nothing calls apt-get when nothing is missing. A "wanted" package only makes things faster: it comes
# along when others are installed and is never asked for.

export LC_ALL=C.UTF-8

packages_of() {
  case $1 in
    build) echo 'g++: command c++
                 cmake: command cmake
                 ninja-build: command ninja
                 libfmt-dev: header fmt/format.h
                 nlohmann-json3-dev: header nlohmann/json.hpp
                 libcli11-dev: header CLI/CLI.hpp
                 libxxhash-dev: header xxhash.h
                 libutf8proc-dev: header utf8proc.h
                 libsqlite3-dev: header sqlite3.h
                 libncurses-dev: header ncursesw/curses.h
                 libboost-dev: header boost/beast.hpp
                 libedit-dev: header histedit.h
                 ccache: wanted ccache' ;;
    test) echo 'libgtest-dev: header gtest/gtest.h
                libgmock-dev: header gmock/gmock.h
                python3: command python3
                libopenmpi-dev: command mpicxx
                openmpi-bin: command mpirun' ;;
    lint) echo 'git: command git
                clang-format-14: command clang-format-14
                shellcheck: command shellcheck' ;;
    report) echo 'python3: command python3
                  python3-matplotlib: module matplotlib' ;;
    hip) echo 'clang-19: command clang++-19
               libamdhip64-dev: file /usr/include/hip/hip_runtime.h' ;;
  esac
}

probe() {
  case $1 in
    command | wanted) command -v "$2" > /dev/null ;;
    file) [ -e "$2" ] ;;
    module) python3 -c "import $2" 2> /dev/null || /usr/bin/python3 -c "import $2" 2> /dev/null ;;
    header) printf '#include <%s>\n' "$2" | c++ -std=c++20 -x c++ -E -o /dev/null - 2> /dev/null ;;
  esac
}

# missing_packages required|wanted GROUP...: the packages of the groups whose probe fails.
missing_packages() {
  local group package kind what need=$1
  shift
  for group in "$@"; do
    while read -r package kind what; do
      case $need:$kind in required:wanted | wanted:command | wanted:file | wanted:header | wanted:module) continue ;; esac
      if ! probe "$kind" "$what"; then echo "${package%:}"; fi
    done < <(packages_of "$group")
  done
}

# need_packages GROUP...: installs what is missing, as root or through sudo; otherwise says how and exits 6.
need_packages() {
  local missing wanted as_root=()
  mapfile -t missing < <(missing_packages required "$@")
  mapfile -t wanted < <(missing_packages wanted "$@")
  if [ ${#missing[@]} -eq 0 ]; then return; fi
  if [ "$(id -u)" -ne 0 ]; then as_root=(sudo); fi
  if ! command -v apt-get > /dev/null ||
    { [ ${#as_root[@]} -gt 0 ] && ! sudo -n true 2> /dev/null && ! { [ -t 0 ] && command -v sudo > /dev/null; }; }; then
    echo "$0: packages are missing (Debian names below). As root, run:" >&2
    echo "  apt-get update && apt-get install -y --no-install-recommends ${missing[*]}" >&2
    exit 6
  fi
  missing+=("${wanted[@]}")
  echo "$0: installing ${missing[*]}"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq update || true  # one dead mirror need not matter
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" \
    > /dev/null || true
  mapfile -t missing < <(missing_packages required "$@")
  if [ ${#missing[@]} -ne 0 ]; then
    echo "$0: still missing after apt-get install: ${missing[*]}" >&2
    exit 6
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
