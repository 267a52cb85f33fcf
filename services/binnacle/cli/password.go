package cli

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/binnacle-mesh/binnacle/services/binnacle/internal/output"
	"github.com/binnacle-mesh/binnacle/services/gateway/password"
)

// newPasswordCmd returns the command password, which sets and removes the passwords of
// persons in the ring of keys.
func newPasswordCmd(c *env) *cobra.Command {
	var tenant, to string
	change := func(cmd *cobra.Command, run func(path, tenant, who string) error) *cobra.Command {
		cmd.Args, cmd.ValidArgsFunction = takes(1, 1), cobra.NoFileCompletions
		cmd.RunE = func(_ *cobra.Command, args []string) error {
			ring, original, err := openRing(c.data)
			if err != nil {
				return fmt.Errorf("passwords are stored where the mesh's keys are: %w", err)
			}
			of := cmp.Or(tenant, original)
			if err := run(ring.Path(password.File), of, args[0]); err != nil {
				return err
			}
			if err := distribute(ring, to); err != nil {
				return err
			}
			return c.print(map[string]string{"tenant": of, "principal": args[0]}, func() { fmt.Fprintf(c.out, "%s of tenant %s: done\n", args[0], of) })
		}
		cmd.Flags().StringVar(&tenant, "tenant", "", "id of the `TENANT` of the principal (default the mesh's original tenant)")
		distributeFlag(cmd, &to)
		return cmd
	}
	return group(&cobra.Command{
		Use:     "password COMMAND",
		Short:   "Set and remove the passwords with which persons log in",
		Example: "  binnacle password set alice\n  binnacle login --user alice",
	},
		change(&cobra.Command{
			Use:   "set WHO",
			Short: "Set a password, which is read from standard input",
			Long: fmt.Sprintf(`Set the password of a principal. It is read from standard input, on a terminal without
showing it, and needs %d characters. Only an Argon2id hash of it is stored, in DATA/keys;
where services have keys of their own, --distribute copies it to the gateways.`, password.MinLength),
			Example: "  binnacle password set alice < password",
		}, func(path, tenant, who string) error {
			secret, err := readSecret(c, "new password of "+who)
			if err != nil {
				return err
			}
			if err := password.Set(path, tenant, who, []byte(secret)); err != nil {
				return fail(exitUsage, "%v", err)
			}
			return nil
		}),
		change(&cobra.Command{
			Use:     "remove WHO",
			Short:   "Remove a password; logins that it opened continue",
			Example: "  binnacle password remove alice",
		}, password.Remove))
}

// maxHidden is the maximum number of bytes that readHidden reads from a standard input that
// is no terminal.
const maxHidden = 64 << 10

// readHidden reads one line without echo if standard input is a terminal, after a prompt with the
// text what. Otherwise it reads all of standard input, and returns an error if that has more than
// maxHidden bytes.
func readHidden(c *env, what string) ([]byte, error) {
	if f, ok := c.in.(*os.File); ok && output.Terminal(f) {
		fmt.Fprintf(c.errOut, "%s: ", what)
		defer fmt.Fprintln(c.errOut)
		return term.ReadPassword(int(f.Fd()))
	}
	b, err := io.ReadAll(io.LimitReader(c.in, maxHidden+1))
	if len(b) > maxHidden {
		return nil, fail(exitUsage, "standard input for the %s has more than %d bytes: want one line", what, maxHidden)
	}
	return b, err
}

// readSecret reads one line from standard input, without echo on a terminal. It is an error
// if the line is empty.
func readSecret(c *env, what string) (string, error) {
	b, err := readHidden(c, what)
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(b), "\n")
	if line = strings.TrimSuffix(line, "\r"); line == "" {
		return "", fail(exitAuth, "standard input contains no %s: want one line", what)
	}
	return line, nil
}
