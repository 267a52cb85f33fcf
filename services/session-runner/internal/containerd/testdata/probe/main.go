// Command probe is the program that the tests of tier "container" run. Its standard input
// selects what it does.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	in, _ := io.ReadAll(os.Stdin)
	switch what, arg, _ := strings.Cut(string(in), " "); what {
	case "echo":
		fmt.Print(arg)
	case "environment":
		fmt.Print(strings.Join(os.Environ(), "\n"))
	case "filter": // prints the state of the system call filter and the results of calls that it denies
		status, _ := os.ReadFile("/proc/self/status")
		value := func(name string) string {
			_, rest, _ := strings.Cut(string(status), "\n"+name+":\t")
			line, _, _ := strings.Cut(rest, "\n")
			return line
		}
		call := func(number uintptr) error {
			_, _, err := syscall.RawSyscall(number, 0, 0, 0)
			return err
		}
		fmt.Printf("mode %s, filters %s, clone3 %v, unshare %v, keyctl %v", value("Seccomp"), value("Seccomp_filters"), call(435), call(syscall.SYS_UNSHARE), call(syscall.SYS_KEYCTL))
	case "processes":
		entries, _ := os.ReadDir("/proc")
		for _, e := range entries {
			if e.Name()[0] >= '0' && e.Name()[0] <= '9' {
				fmt.Println(e.Name())
			}
		}
	case "mark": // prints the number of files in /tmp, and writes a file to each writable folder
		entries, _ := os.ReadDir("/tmp")
		fmt.Print(len(entries))
		for _, dir := range []string{"/tmp", "/work"} {
			if err := os.WriteFile(dir+"/mark", nil, 0o600); err != nil {
				fmt.Print(err)
			}
		}
	case "sleep":
		time.Sleep(time.Hour)
	case "orphan": // leaves a process in a session of its own, which sleeps
		if len(os.Args) == 1 {
			cmd := exec.Command("/pack/main", "child")
			cmd.Stdin = strings.NewReader("sleep")
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			fmt.Print(cmd.Start())
		}
	case "memory":
		var all [][]byte
		for {
			b := make([]byte, 1<<20)
			for i := range b {
				b[i] = 1
			}
			all = append(all, b)
			_ = all
		}
	case "disk": // fills the folder arg until it is full
		f, err := os.Create(arg + "/file")
		for b := make([]byte, 1<<20); err == nil; {
			_, err = f.Write(b)
		}
		fmt.Print(errors.Unwrap(err))
		os.Exit(1)
	case "names": // makes folders in the folder arg until that fails
		var err error
		for n := 0; err == nil; n++ {
			err = os.Mkdir(fmt.Sprintf("%s/%d", arg, n), 0o700)
		}
		fmt.Print(errors.Unwrap(err))
		os.Exit(1)
	case "places": // prints the folders in which a file can be made, and the number of MiB of their file systems
		_ = filepath.WalkDir("/", func(path string, e fs.DirEntry, err error) error {
			if err != nil || !e.IsDir() {
				return nil
			}
			if path == "/proc" {
				return fs.SkipDir
			}
			var st syscall.Statfs_t
			f, err := os.CreateTemp(path, "x")
			if err == nil && syscall.Statfs(path, &st) == nil {
				fmt.Printf("%s %d\n", path, int64(st.Blocks)*st.Bsize>>20)
				_ = f.Close()
			}
			return nil
		})
	case "forks": // starts processes that sleep, until that fails
		for {
			cmd := exec.Command("/pack/main")
			cmd.Stdin = strings.NewReader("sleep")
			if err := cmd.Start(); err != nil {
				fmt.Print(errors.Unwrap(err))
				return
			}
		}
	case "flood": // writes without end
		for b := bytes.Repeat([]byte("x"), 1<<20); ; {
			_, _ = os.Stdout.Write(b)
		}
	case "ignore": // ignores every signal that can be ignored
		signal.Ignore()
		time.Sleep(time.Hour)
	case "kill": // ends as a program that the kernel killed would
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // ignored for the first process of a namespace
		os.Exit(137)
	}
}
