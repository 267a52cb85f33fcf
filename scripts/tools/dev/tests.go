package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// watchTests runs tests when sources change, until ctx is done: first those of the
// changed packages and, if they pass, those of the packages that depend on them. A
// change during a run cancels it and starts a new one. End-to-end tests are left out.
func watchTests(ctx context.Context) error {
	w := watcher{}
	w.seen = w.read()
	fmt.Println("dev: waiting for a change; Ctrl-C ends")
	dirs := w.next(ctx)
	for dirs != nil {
		all, err := list(ctx, "work")
		if err != nil {
			return err
		}
		running, cancel := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			own, others := touchedTests(dirs, all)
			if test(running, own) {
				test(running, others)
			}
		}()
		dirs = w.next(ctx)
		cancel()
		<-ended
	}
	return nil
}

// touchedTests returns the packages with tests to which the changed folders belong
// (own), and the remaining packages with tests whose code or tests depend on a package
// of a changed folder (others). Packages in e2e are omitted. Both lists are sorted.
func touchedTests(dirs []string, all map[string]*listed) (own, others []string) {
	touched := changed(dirs, all)
	for path, p := range all {
		if len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 || strings.HasPrefix(p.Dir, "e2e") {
			continue
		}
		if touched[path] {
			own = append(own, path)
		} else if p.needs(touched) || slices.ContainsFunc(slices.Concat(p.TestImports, p.XTestImports), func(i string) bool {
			return touched[i] || all[i] != nil && all[i].needs(touched)
		}) {
			others = append(others, path)
		}
	}
	slices.Sort(own)
	slices.Sort(others)
	return own, others
}

// test runs the tests of packages and reports whether they passed. An empty list passes
// unless ctx is done.
func test(ctx context.Context, packages []string) bool {
	if len(packages) == 0 {
		return ctx.Err() == nil
	}
	fmt.Printf("dev: testing %d packages\n", len(packages))
	cmd := exec.CommandContext(ctx, "go", append([]string{"test"}, packages...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	err := cmd.Run()
	if ctx.Err() == nil {
		fmt.Println("dev:", map[bool]string{true: "passed", false: "FAILED"}[err == nil])
	}
	return err == nil
}
