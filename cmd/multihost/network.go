package main

import (
	"github.com/urfave/cli/v2"

	"multihost/internal/event"
	"multihost/internal/network"
	"multihost/internal/options"
)

func networkCommand() *cli.Command {
	return group(cli.Command{
		Name:  "network",
		Usage: "make, show and delete a network with MTU 8896 and its firewall",
		Subcommands: []*cli.Command{
			networkCreateCommand(), networkShowCommand(), networkUpdateCommand(), networkDeleteCommand(), firewallCommand(),
		},
	})
}

func networkCreateCommand() *cli.Command {
	return command(cli.Command{
		Name:      "create",
		Usage:     "make the network and the firewall rules that do not exist yet",
		ArgsUsage: "[NAME]",
		Description: `Makes the network (mtu9k unless named) with automatic subnetworks, and rules for
tcp, udp and icmp inside it and for SSH from --ssh-source-ranges. The default is
the range of Identity-Aware Proxy; add your own address to log in directly:

  multihost network create --ssh-source-ranges=35.235.240.0/20,203.0.113.7/32`,
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "mtu", Value: network.DefaultMTU, Usage: "largest packet, in `BYTES`: 1300 to 8896"},
			&cli.StringFlag{Name: "subnet-mode", Value: "auto", Usage: "auto, custom or legacy: how subnetworks are made (`MODE`)"},
			&cli.StringFlag{Name: "bgp-routing-mode", Value: "regional", Usage: "regional or global: how far dynamic routes reach (`MODE`)"},
			&cli.StringFlag{Name: "ssh-source-ranges", Value: network.IAPRange, Usage: "addresses `CIDR,…` that may reach port 22"},
			&cli.StringFlag{Name: "all-ports-from", Usage: "open every port to the addresses `CIDR,…`"},
			&cli.BoolFlag{Name: "dry-run", Usage: "print the plan and the gcloud commands that do the same; change nothing"},
		},
		Action: withSession(func(s *session, c *call) error {
			o := options.Network(&c.Call)
			if err := ready(c); err != nil {
				return err
			}
			plan, err := s.networks.Plan(c.Context, o)
			if err != nil {
				return interruptible(c.Context, err)
			}
			if s.dryRun {
				s.view.Emit(event.Result{Name: "network_plan", Text: plan.String(), Data: plan})
				return plan.Err()
			}
			if err := s.networks.Apply(c.Context, plan); err != nil {
				return interruptible(c.Context, err)
			}
			return nil
		}),
	}, exitOK, exitUsage, exitUnavailable, exitTempFail, exitPermission, exitConfig)
}

func networkShowCommand() *cli.Command {
	return command(cli.Command{
		Name: "show", Usage: "show a network and its firewall rules", ArgsUsage: "[NAME]",
		Action: withSession(func(s *session, c *call) error {
			name := options.NetworkName(&c.Call)
			if err := ready(c); err != nil {
				return err
			}
			info, err := s.networks.Show(c.Context, name)
			return s.showResult(c, "network", info, err)
		}),
	}, exitOK, exitUsage, exitUnavailable, exitPermission, exitConfig)
}

func networkUpdateCommand() *cli.Command {
	return command(cli.Command{
		Name: "update", Usage: "change the MTU of a network that no machine is on", ArgsUsage: "NAME",
		Flags: []cli.Flag{&cli.IntFlag{Name: "mtu", Value: network.DefaultMTU, Usage: "largest packet, in `BYTES`: 1300 to 8896"}},
		Action: withSession(func(s *session, c *call) error {
			name := c.OneWord("name", "")
			mtu := options.MTU(&c.Call)
			if err := ready(c); err != nil {
				return err
			}
			_, err := s.networks.SetMTU(c.Context, name, mtu)
			return interruptible(c.Context, err)
		}),
	}, exitOK, exitUsage, exitUnavailable, exitPermission, exitConfig)
}

func networkDeleteCommand() *cli.Command {
	return command(cli.Command{
		Name: "delete", Usage: "delete a network that multihost made, with its rules", ArgsUsage: "NAME",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "dry-run", Usage: "say what would be deleted; change nothing"}},
		Action: withSession(func(s *session, c *call) error {
			name := c.OneWord("name", "")
			if err := ready(c); err != nil {
				return err
			}
			if s.dryRun {
				plan, err := s.networks.PlanDelete(c.Context, name)
				if err != nil {
					return interruptible(c.Context, err)
				}
				s.view.Emit(event.Result{Name: "delete_plan", Text: plan.Text(name), Data: plan})
				return nil
			}
			_, err := s.networks.Delete(c.Context, name)
			return interruptible(c.Context, err)
		}),
	}, exitOK, exitUsage, exitUnavailable, exitPermission, exitConfig)
}

func firewallCommand() *cli.Command {
	return group(cli.Command{
		Name:  "firewall",
		Usage: "make or delete one firewall rule",
		Subcommands: []*cli.Command{
			command(cli.Command{
				Name: "create", Usage: "make one rule", ArgsUsage: "NAME",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "network", Value: network.DefaultName, Usage: "`NAME` of the network"},
					&cli.StringFlag{Name: "allow", Usage: "let in `PROTOCOL[:PORT],…`"},
					&cli.StringFlag{Name: "source-ranges", Usage: "let in from the addresses `CIDR,…`; without it, from everywhere, as gcloud does"},
					&cli.StringFlag{Name: "target-tags", Usage: "let in to machines with the network tags `T1,T2`"},
					&cli.IntFlag{Name: "priority", Value: 1000, Usage: "`NUMBER` of the rule; a lower one wins"},
				},
				Action: withSession(func(s *session, c *call) error {
					rule := options.FirewallRule(&c.Call)
					if err := ready(c); err != nil {
						return err
					}
					_, err := s.networks.CreateFirewall(c.Context, rule)
					return interruptible(c.Context, err)
				}),
			}, exitOK, exitUsage, exitUnavailable, exitPermission, exitConfig),
			command(cli.Command{
				Name: "delete", Usage: "delete one rule", ArgsUsage: "NAME",
				Action: withSession(func(s *session, c *call) error {
					name := c.OneWord("name", "")
					if err := ready(c); err != nil {
						return err
					}
					deleted, err := s.networks.DeleteFirewall(c.Context, name)
					if deleted { // if nothing was deleted, DeleteFirewall has already said so
						event.Notef(s.view, event.Info, "", "deleted firewall rule %s", name)
					}
					return interruptible(c.Context, err)
				}),
			}, exitOK, exitUsage, exitUnavailable, exitPermission, exitConfig),
		},
	})
}
