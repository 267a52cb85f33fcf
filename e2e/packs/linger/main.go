// Command linger is a pack that ends at once, sleeps until it is stopped, or leaves a process that sleeps
// in a session of its own.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 {
		time.Sleep(time.Hour)
	}
	var in struct {
		How string `json:"how"` // end, sleep or orphan
	}
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		log.Fatal(err)
	}
	switch in.How {
	case "sleep":
		time.Sleep(time.Hour)
	case "orphan":
		cmd := exec.Command("/proc/self/exe", "child")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println("{}")
}
