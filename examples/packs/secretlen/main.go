// Command secretlen is the pack cmd.secretlen: it is given a secret, proves
// that it has it by its length, and echoes it once, to show that the mesh
// scrubs it.
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
