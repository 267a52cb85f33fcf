// Command client runs in a sandbox. Each line of its standard input is an attempt, and
// each line of its output the result.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

func main() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		what, arg, _ := strings.Cut(lines.Text(), " ")
		fmt.Println(attempt(what, arg))
	}
}

// attempt returns the result of one attempt. A result that begins with "failed" is an
// error.
func attempt(what, arg string) string {
	switch what {
	case "get": // uses the proxy that the environment names
		r, err := http.Get(arg)
		if err != nil {
			return "failed: " + err.Error()
		}
		defer r.Body.Close()
		b, _ := io.ReadAll(r.Body)
		return string(b)
	case "dial": // network and address; ignores the proxy
		network, address, _ := strings.Cut(arg, " ")
		c, err := net.DialTimeout(network, address, time.Second)
		if err != nil {
			return "failed: " + err.Error()
		}
		_ = c.Close()
		return "connected"
	case "env":
		return fmt.Sprintf("%q", os.Getenv(arg))
	case "read":
		b, err := os.ReadFile(arg)
		if err != nil {
			return "failed: " + err.Error()
		}
		return fmt.Sprintf("%q", b)
	case "write": // replaces a file
		return failed(os.WriteFile(arg, []byte("changed"), 0o600))
	case "remove":
		return failed(os.Remove(arg))
	case "chmod":
		return failed(os.Chmod(arg, 0o666))
	}
	return "unknown"
}

func failed(err error) string {
	if err != nil {
		return "failed: " + err.Error()
	}
	return "done"
}
