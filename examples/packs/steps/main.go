// Command steps is the pack cmd.steps: it takes steps with a pause after each, reports its
// progress before each pause, and returns its log, which becomes an artifact.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

func main() {
	var in struct {
		Steps   int `json:"steps"`
		PauseMS int `json:"pause_ms"`
	}
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var log strings.Builder
	for i := range in.Steps {
		fmt.Fprintf(os.Stderr, `{"_progress":{"percent":%d,"message":"step %d of %d"}}`+"\n", (i+1)*100/in.Steps, i+1, in.Steps)
		fmt.Fprintf(&log, "step %d\n", i+1)
		time.Sleep(time.Duration(in.PauseMS) * time.Millisecond)
	}
	json.NewEncoder(os.Stdout).Encode(map[string]any{"steps": in.Steps, "log": log.String()})
}
