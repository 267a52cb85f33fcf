// Command upper is the pack cmd.upper: it returns its text in upper case.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

func main() {
	var in struct {
		Text string `json:"text"`
	}
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	json.NewEncoder(os.Stdout).Encode(map[string]string{"text": strings.ToUpper(in.Text)})
}
