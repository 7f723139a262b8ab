"""ROS 2 node around `driver.Driver`: /scan and /odom in, /drive out.

Run it by `python3 node.py --ros-args -p policy:=policy -p max_speed:=1.5`.
"""

import sys
from pathlib import Path

import rclpy
from ackermann_msgs.msg import AckermannDriveStamped
from driver import Driver
from nav_msgs.msg import Odometry
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import LaserScan

# Commands per second; decisions are as far apart as in training.
RATE = 100.0


class PolicyNode(Node):
    """Publishes a policy's commands."""

    def __init__(self):
        super().__init__("policy")
        folder = Path(self.declare_parameter("policy", "policy").value)
        sys.path.insert(0, str(folder))
        from run_policy import open_policy

        self.driver = Driver(open_policy(folder), self.declare_parameter("max_speed", 1.0).value)
        self.create_subscription(LaserScan, "/scan", self.take_scan, qos_profile_sensor_data)
        self.create_subscription(Odometry, "/odom", self.take_odometry, qos_profile_sensor_data)
        self.publisher = self.create_publisher(AckermannDriveStamped, "/drive", 1)
        self.create_timer(1.0 / RATE, self.publish)

    def now(self):
        """Seconds of the node's clock."""
        return self.get_clock().now().nanoseconds * 1e-9

    def take_scan(self, scan):
        """Hands on a scan; its age counts from its arrival."""
        limits = scan.angle_min, scan.angle_increment, scan.range_min, scan.range_max
        self.driver.take_scan(self.now(), scan.ranges, *limits)

    def take_odometry(self, odometry):
        """Hands on the velocity in the car's frame."""
        twist = odometry.twist.twist
        self.driver.show("ego_velocity", [twist.linear.x, twist.linear.y, twist.angular.z])

    def publish(self):
        """Publishes the command of this moment."""
        command, message = self.driver.decide(self.now()), AckermannDriveStamped()
        message.header.stamp = self.get_clock().now().to_msg()
        message.drive.steering_angle, message.drive.speed = command
        self.publisher.publish(message)


def main():
    """Runs the node until it is stopped."""
    rclpy.init()
    rclpy.spin(PolicyNode())


if __name__ == "__main__":
    main()
