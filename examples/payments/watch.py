"""Every alert once, whichever site it came from.

python examples/payments/watch.py --bootstrap-servers HOST:PORT
"""

import argparse

import lockstep


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap-servers", required=True)
    parser.add_argument("--topic", default="alerts")
    parser.add_argument("--count", type=int, default=0, help="stop after so many alerts; 0: never")
    arguments = parser.parse_args()
    with lockstep.Consumer(arguments.bootstrap_servers, arguments.topic, group="watch") as consumer:
        for number, alert in enumerate(consumer, start=1):
            print(f"{alert.site} _sn {alert.sn}: {(alert.value or b'').decode()}", flush=True)
            if number == arguments.count:
                return


if __name__ == "__main__":
    main()
