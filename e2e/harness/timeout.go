package harness

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// spare is how long before the time limit of a test process the functions of OnTimeout run.
const spare = 45 * time.Second

// expiry holds the functions of OnTimeout that are registered now.
var expiry struct {
	sync.Mutex
	armed bool
	next  int
	stop  map[int]func()
}

// OnTimeout registers stop, until the test has ended, for the case that the test process
// reaches its time limit (flag -test.timeout). Package testing then ends the process without the
// cleanups of its tests, and what they started in the container engine would go on and delay the
// tests that follow. Shortly before the limit, the process runs the registered functions at the
// same time, prints the stacks of its goroutines and ends.
func OnTimeout(t testing.TB, stop func()) {
	expiry.Lock()
	defer expiry.Unlock()
	if expiry.stop == nil {
		expiry.stop = map[int]func(){}
	}
	n := expiry.next
	expiry.next++
	expiry.stop[n] = stop
	t.Cleanup(func() {
		expiry.Lock()
		defer expiry.Unlock()
		delete(expiry.stop, n)
	})
	if d, ok := t.(interface{ Deadline() (time.Time, bool) }); ok && !expiry.armed {
		if at, limited := d.Deadline(); limited {
			expiry.armed = true
			time.AfterFunc(time.Until(at)-spare, func() { expire(strings.Split(t.Name(), "/")[0]) })
		}
	}
}

// expire ends the process as OnTimeout describes. test is the name of a test that runs.
func expire(test string) {
	stacks := make([]byte, 16<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	fmt.Printf("panic: the test has reached its time limit\n\n%s\n--- FAIL: %s\n", stacks, test)
	expiry.Lock()
	stops := expiry.stop
	expiry.stop = nil
	expiry.Unlock()
	var wg sync.WaitGroup
	for _, stop := range stops {
		wg.Go(stop)
	}
	wg.Wait()
	os.Exit(2)
}

// removeProject removes the containers of a compose project, without its networks and volumes.
func removeProject(name string) {
	ids, err := exec.Command("docker", "ps", "-aq", "--filter", "label=com.docker.compose.project="+name).Output()
	if list := strings.Fields(string(ids)); err == nil && len(list) > 0 {
		err = exec.Command("docker", append([]string{"rm", "-f"}, list...)...).Run()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "the containers of %s were not removed: %v\n", name, err)
	}
}

// RemoveOnTimeout removes the containers of a compose project if the test process reaches its
// time limit before the test has ended.
func RemoveOnTimeout(t testing.TB, project string) { OnTimeout(t, func() { removeProject(project) }) }
