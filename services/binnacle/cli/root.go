package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// verb is the constructor of a top-level command.
type verb func(*env) *cobra.Command

// families lists the top-level commands in the groups and order of the help text.
var families = []struct {
	id, title string
	verbs     []verb
}{
	{"run", "Run a mesh", []verb{newUpCmd, newInitCmd, newConfigCmd, newDoctorCmd, newProvisionCmd, newBackupCmd, newRestoreCmd}},
	{"use", "Use a mesh", []verb{newCallCmd, newJobCmd, newDecideCmd, newReportCmd, newChatCmd, newToolsCmd, newPackCmd, newSandboxCmd, newRunCmd, newArtifactCmd, newPipelineCmd, newImageCmd, newSecretCmd, newEraseCmd, newMCPCmd, newProxyCmd, newHookCmd, newJudgeCmd,
		newTokenCmd, newPasswordCmd, newDeviceCmd, newKeyCmd, newSessionCmd, newLLMCmd}},
	{"govern", "Govern a mesh", []verb{newPolicyCmd, newApprovalsCmd, newTenantCmd, newFreezeCmd, newUnfreezeCmd, newPrincipalsCmd, newRolesCmd, newMembersCmd, newDelegationsCmd,
		newBreakGlassCmd, newTrustCmd}},
	{"prove", "Audit and verify", []verb{newEventsCmd, newSearchCmd, newWhyCmd, newReplayCmd, newExportCmd, newArchiveCmd, newForwardCmd, newAttestCmd, newVerifyCmd, newConformCmd,
		newRecoverCmd, newWitnessCmd}},
	{"line", "The command line", []verb{newLoginCmd, newLogoutCmd, newContextCmd, newCompletionCmd, newManualCmd, newDevCmd, newVersionCmd, newHelpCmd}},
}

const about = `binnacle runs a verifiable mesh for AI agents, and is the client of a running mesh.

A command connects to the mesh at --addr, BINNACLE_ADDR or the address of the
current context (default 127.0.0.1:8080). It authenticates with --token,
BINNACLE_TOKEN, the token of the context or DATA/admin.token. Commands about the
whole mesh (tenants, freezes, the whole ledger) need an operator's token:
BINNACLE_OPERATOR_TOKEN or DATA/operator.token.
'binnacle COMMAND --help' describes a command, its flags and its subcommands.

Exit codes: 0 success, 1 failure or verification failed, 2 wrong usage, 3 denied
by policy, 4 no mesh at the address, 5 token rejected, 6 replay differs, 7 the
call waits for approval, 8 a witness detected a fork.`

// newRoot returns the command binnacle with all its subcommands.
func newRoot(c *env) *cobra.Command {
	cobra.EnableCommandSorting = false
	root := &cobra.Command{
		Use:               "binnacle COMMAND",
		Short:             "Run and use a verifiable mesh for AI agents",
		Long:              about,
		Example:           "  binnacle up --data data\n  binnacle call cmd.upper '{\"text\":\"fair winds\"}' --session s-tour\n  binnacle verify tour.tar",
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return c.start(cmd.Flags()) },
	}
	group(root)
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(cmd, args[0])
		}
		if err := c.help(cmd); err != nil {
			return err
		}
		return &exitError{code: exitUsage, err: errSilent}
	}
	root.SetOut(c.out)
	root.SetErr(c.errOut)
	root.SetIn(c.in)
	globalFlags(c, root.PersistentFlags())
	root.PersistentFlags().BoolP("help", "h", false, "explain the command")
	root.SetFlagErrorFunc(wrongFlag)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { _ = c.help(cmd) })
	for _, f := range families {
		root.AddGroup(&cobra.Group{ID: f.id, Title: f.title + ":"})
		for _, v := range f.verbs {
			cmd := v(c)
			cmd.GroupID = f.id
			if cmd.Name() == "help" {
				root.SetHelpCommand(cmd)
			}
			root.AddCommand(cmd)
		}
	}
	completeGlobalFlags(root)
	return root
}

// group adds subcommands to a command that does nothing by itself: without a subcommand
// it fails with exit code 2. It returns cmd.
func group(cmd *cobra.Command, subs ...*cobra.Command) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.FParseErrWhitelist.UnknownFlags = true // so that the error is about the unknown subcommand and not about its flags
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownCommand(cmd, args[0])
		}
		var names []string
		for _, sub := range cmd.Commands() {
			names = append(names, sub.Name())
		}
		return fail(exitUsage, "usage: %s %s; '%s --help' explains them", cmd.CommandPath(), strings.Join(names, "|"), cmd.CommandPath())
	}
	cmd.AddCommand(subs...)
	return cmd
}
