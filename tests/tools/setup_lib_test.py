"""scripts/setup-lib.sh on systems that are not there: fake os-release files and package managers."""
import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SYSTEMS = {
    "debian-12": 'ID=debian\nVERSION_ID="12"\n',
    "debian-13": 'ID=debian\nVERSION_ID="13"\n',
    "ubuntu-22.04": 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="22.04"\nUBUNTU_CODENAME=jammy\n',
    "ubuntu-24.04": 'ID=ubuntu\nID_LIKE=debian\nVERSION_ID="24.04"\nUBUNTU_CODENAME=noble\n',
    "fedora": "ID=fedora\nVERSION_ID=42\n",
    "arch": 'ID=arch\n',
    "suse": 'ID="opensuse-tumbleweed"\nID_LIKE="opensuse suse"\n',
    "other": "ID=void\n",
}
NOTHING_THERE = "probe() { false; }\n"
# apt-get that installs: what it was asked for is there afterwards.
INSTALLS = 'probe() { [ -e "$FAKE/installed" ]; }\n'


class Machine:
    """A folder with a fake os-release and programs in front of PATH, and a bash that has sourced the library."""

    def __init__(self, folder, release, user=0):
        self.folder = pathlib.Path(folder)
        (self.folder / "os-release").write_text(release)
        self.program("id", f"echo {user}")
        self.program("apt-get",
                     'echo "apt-get $*" >> "$FAKE/log"; case "$*" in *install*) touch "$FAKE/installed" ;; esac')
        self.program("sudo", 'echo sudo >> "$FAKE/log"; exit 1')
        for name in ("dnf", "pacman", "zypper"):
            self.program(name, f'echo "{name} $*" >> "$FAKE/log"')

    def program(self, name, body):
        path = self.folder / name
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def bash(self, script):
        env = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}", "FAKE": str(self.folder),
               "RIDGE_OS_RELEASE": str(self.folder / "os-release")}
        env.pop("CXX", None)
        return subprocess.run(["bash", "-c", f"set -euo pipefail\n. scripts/setup-lib.sh\n{script}"], cwd=ROOT, env=env,
                              capture_output=True, text=True, check=False)

    def log(self):
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""


class SetupLib(unittest.TestCase):
    def machine(self, system, **options):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return Machine(folder.name, SYSTEMS.get(system, system), **options)

    def missing(self, system, groups="build test"):
        done = self.machine(system).bash(f"{NOTHING_THERE}missing_packages required {groups}")
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.split()

    def test_systems_are_told_apart(self):
        for name, release in SYSTEMS.items():
            self.assertEqual(self.machine(name).bash("system").stdout.strip(), name, release)
        derived = {'ID=linuxmint\nID_LIKE="ubuntu debian"\nUBUNTU_CODENAME=jammy\n': "ubuntu-22.04",
                   'ID=pop\nID_LIKE="ubuntu debian"\nUBUNTU_CODENAME=noble\n': "ubuntu-24.04",
                   "ID=raspbian\nID_LIKE=debian\n": "debian-12",
                   'ID="rocky"\nID_LIKE="rhel centos fedora"\n': "fedora",
                   "ID=manjaro\nID_LIKE=arch\n": "arch"}
        for release, name in derived.items():
            self.assertEqual(self.machine(release).bash("system").stdout.strip(), name, release)

    def test_names_follow_the_system(self):
        self.assertIn("g++", self.missing("debian-12"))
        self.assertIn("g++", self.missing("ubuntu-24.04"))
        self.assertIn("g++-12", self.missing("ubuntu-22.04"))
        self.assertNotIn("g++", self.missing("ubuntu-22.04"))
        self.assertLessEqual({"gcc-c++", "json-devel", "ninja-build", "openmpi-devel"}, set(self.missing("fedora")))
        self.assertLessEqual({"gcc", "nlohmann-json", "ninja", "libutf8proc"}, set(self.missing("arch")))
        self.assertLessEqual({"gcc-c++", "nlohmann_json-devel", "libboost_headers-devel"}, set(self.missing("suse")))
        self.assertEqual(self.missing("arch").count("gtest"), 1)  # one package has both libraries
        self.assertNotIn("ccache", self.missing("debian-12"))

    def test_every_package_has_a_name_elsewhere_or_is_said_to_have_none(self):
        debian = set(self.missing("debian-12", "build test lint report hip"))
        same = {"cmake", "git"}
        for system in ("fedora", "arch", "suse"):
            here = set(self.missing(system, "build test lint report hip"))
            self.assertFalse({name for name in here & debian - same if name.endswith("-dev")}, system)

    def test_apt_installs_as_root_and_says_so_elsewhere(self):
        for system in ("debian-12", "debian-13", "ubuntu-22.04", "ubuntu-24.04"):
            machine = self.machine(system)
            done = machine.bash(f"{INSTALLS}need_packages build test")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("install -y --no-install-recommends", machine.log())
            self.assertIn("ccache", machine.log())
        for system, command in {"fedora": "dnf install -y gcc-c++", "arch": "pacman -S --needed gcc",
                                "suse": "zypper install -y gcc-c++", "other": "Debian names"}.items():
            machine = self.machine(system)
            done = machine.bash(f"{INSTALLS}need_packages build test")
            self.assertEqual(done.returncode, 6)
            self.assertIn(command, done.stderr)
            self.assertEqual(machine.log(), "")

    def test_without_root_the_line_is_printed(self):
        machine = self.machine("debian-12", user=1000)
        done = machine.bash(f"{INSTALLS}need_packages build")
        self.assertEqual(done.returncode, 6)
        self.assertIn("apt-get install -y --no-install-recommends g++ cmake", done.stderr)
        self.assertNotIn("apt-get", machine.log())

    def test_what_stays_missing_is_named(self):
        machine = self.machine("debian-12")
        done = machine.bash(f"{NOTHING_THERE}need_packages build")
        self.assertEqual(done.returncode, 6)
        self.assertIn("still missing: g++ cmake", done.stderr)
        done = self.machine("debian-13").bash(f"{INSTALLS}need_packages lint")
        self.assertEqual(done.returncode, 6)  # 14 is not among its packages
        self.assertIn("clang-format-14", done.stderr)

    def test_nothing_is_called_when_nothing_is_missing(self):
        machine = self.machine("fedora")
        self.assertEqual(machine.bash("probe() { true; }\nneed_packages build test lint report hip").returncode, 0)
        self.assertEqual(machine.log(), "")

    def test_an_old_compiler_gives_way_to_a_newer_one(self):
        machine = self.machine("ubuntu-22.04")
        script = ('new_enough() { [ "$1" != c++ ]; }\ncommand() { case $2 in c++ | g++-12 | g++-13) ;; *) return 1 ;; '
                  'esac; }\n')
        self.assertEqual(machine.bash(f"{script}compiler").stdout.strip(), "g++-13")
        done = machine.bash(f'{script}probe() {{ true; }}\nneed_packages build\necho "$CXX"')
        self.assertEqual(done.stdout.strip(), "g++-13")
        done = machine.bash('new_enough() { false; }\nprobe compiler 12 && echo yes || echo no')
        self.assertEqual(done.stdout.strip(), "no")

    def test_versions_compare_by_numbers(self):
        machine = self.machine("debian-12")
        for version, enough in {"3.22.1": True, "3.22": True, "3.9.9": False, "4.0": True, "3.100": True}.items():
            done = machine.bash(f"at_least 3.22 {version} && echo yes || echo no")
            self.assertEqual(done.stdout.strip(), "yes" if enough else "no", version)

    def test_the_newest_clang_is_found(self):
        machine = self.machine("debian-12")
        machine.program("apt-cache", 'echo "clang-9 - old"; echo "clang-97 - new"; echo "clang-98-doc - no"')
        self.assertEqual(machine.bash("newest_clang").stdout.strip(), "97")
        self.assertEqual(machine.bash(f"{NOTHING_THERE}missing_packages required newest").stdout.strip(), "clang-97")


if __name__ == "__main__":
    unittest.main()
