// Command leak is the pack cmd.leak. It prints the secret leak-key, or the one that the caller names, in
// an encoding that the caller selects, the secret leak-pin as it is, or both, as the caller requests. The
// test in e2e/attack/leak_test.go shows that neither is recorded.
package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/binnacle-mesh/binnacle/e2e/packs/spell"
)

func main() {
	var in struct {
		How     string            `json:"how"`
		Where   string            `json:"where"`
		Secret  string            `json:"secret"`
		Secrets map[string]string `json:"_secrets"`
	}
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	key, pin := in.Secrets[cmp.Or(in.Secret, "leak-key")], in.Secrets["leak-pin"]
	s := spell.In(in.How, key)
	switch in.Where {
	case "key":
		fmt.Printf(`{"result":{"before %s after":1,"%s":2}}`, s, s)
	case "stderr":
		fmt.Fprintf(os.Stderr, "cannot log in with %s (pin %s)", s, pin)
		os.Exit(3)
	case "cut": // standard error is truncated in the middle of the secret when it is recorded
		fmt.Fprint(os.Stderr, strings.Repeat("x", 4096-len(s)/2), s)
		os.Exit(3)
	case "garbage":
		fmt.Printf(`{"result":{"%s":%s`, s, s)
	case "number":
		fmt.Printf(`{"result":{"pin":%s,"more":-%s.5,"text":"%s"}}`, pin, pin, pin)
	case "schema": // violates the output schema, so that an error message describes the output
		fmt.Printf(`{"result":{"n":1},"%s":"%s"}`, s, s)
	default:
		fmt.Printf(`{"result":{"a":["%s","x%sx"],"length":%d}}`, s, s, len(key))
	}
}
