// Command spin is the pack cmd.spin: it misbehaves in the way that its arguments select,
// to show that the sandbox contains it.
package main

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"
)

func main() {
	var in struct {
		How string `json:"how"`
	}
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		os.Exit(1)
	}
	say := func(v any) { json.NewEncoder(os.Stdout).Encode(map[string]any{"result": fmt.Sprint(v)}) }
	switch in.How {
	case "loop":
		for { //nolint:staticcheck // SA5002: the loop must not end
		}
	case "sleep":
		time.Sleep(time.Hour)
	case "nap":
		time.Sleep(400 * time.Millisecond)
		say("rested")
	case "memory":
		var hold [][]byte
		for {
			b := make([]byte, 4<<20)
			for i := 0; i < len(b); i += 4096 { // one write allocates the whole page; writing each byte takes too long on a busy machine
				b[i] = 1
			}
			hold = append(hold, b)
			_ = len(hold)
		}
	case "fork":
		n := 0
		for ; n < 4096; n++ {
			c := exec.Command("/pack/main")
			c.Stdin = strings.NewReader(`{"how":"sleep"}`)
			if err := c.Start(); err != nil {
				break
			}
		}
		say(n)
	case "print":
		for {
			os.Stdout.WriteString(strings.Repeat("x", 1<<16))
		}
	case "network":
		_, err := net.DialTimeout("tcp", "127.0.0.1:4222", time.Second)
		say(err)
	case "interfaces":
		list, _ := net.Interfaces()
		var up []string
		for _, i := range list {
			if i.Flags&net.FlagUp != 0 && i.Flags&net.FlagLoopback == 0 {
				up = append(up, i.Name)
			}
		}
		say(len(up))
	case "write":
		say(os.WriteFile("/pack/evil", []byte("x"), 0o755))
	case "root":
		list, _ := os.ReadDir("/")
		var names []string
		for _, e := range list {
			names = append(names, e.Name())
		}
		say(strings.Join(names, ","))
	case "env":
		say(strings.Join(os.Environ(), ","))
	case "clock":
		a := time.Now()
		time.Sleep(time.Hour)
		say(fmt.Sprint(a.UTC().Format(time.RFC3339), " ", time.Since(a).Round(time.Minute)))
	case "random":
		say(rand.Text())
	case "id":
		say(fmt.Sprint(os.Getuid(), " ", os.Getppid()))
	case "exit":
		fmt.Fprintln(os.Stderr, "failing on request")
		os.Exit(3)
	case "garbage":
		fmt.Print("{not json")
	default:
		say("nothing")
	}
}
