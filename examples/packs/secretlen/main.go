// Command secretlen is the pack cmd.secretlen: it returns the length of the secret that
// it receives, and echoes the secret once, to show that the mesh redacts it.
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

func main() {
	var in struct {
		Secrets map[string]string `json:"_secrets"`
	}
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	v, ok := in.Secrets["demo-api-key"]
	if !ok {
		fmt.Fprintln(os.Stderr, "no secret was delivered")
		os.Exit(1)
	}
	json.NewEncoder(os.Stdout).Encode(map[string]any{"length": len(v), "echo": v})
}
